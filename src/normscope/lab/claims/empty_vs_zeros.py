"""Memory that is filled anyway need not be zeroed first. Does it show?"""

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from normscope.blocks.initialization import GLOROT_TRUNCATED
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.report.charts import by_number
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import Chart

TURNS = {64: 20, 256: 20, 512: 12, 1024: 6, 2048: 4}
"""The widths of square weights, and how often each is drawn; the largest takes 16 megabytes and a fifth of a second."""
LARGEST = max(TURNS)
EQUAL = 1.0
"""Cheaper is what takes less time, by however little; how much it saves is for the reader to judge."""


def _by_torch(weight: Tensor) -> None:
    nn.init.trunc_normal_(weight, std=0.02, a=-0.06, b=0.06)


def _nothing(weight: Tensor) -> None:
    """Allocated and left alone."""


FILLS: Mapping[str, Callable[[Tensor], object]] = {
    "nothing": _nothing,
    "ones": nn.init.ones_,
    "normscope's normal": GLOROT_TRUNCATED.fill_,
    "torch's normal": _by_torch,
}
"""What comes after allocating; all but the first write every entry."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    times = budget.pick(quick=1, full=16)
    return {
        f"{fill} {size}": {"fill": fill, "size": size, "repeats": times * turns}
        for fill in FILLS
        for size, turns in TURNS.items()
    }


def measure(settings: Settings, seed: int) -> Metrics:
    """The time of zeros and filling as a multiple of that of empty and filling: the median of pairs right after one
    another, either one first in turns, by the thread's own clock, which stands still while others have the core."""
    fill, size = FILLS[settings["fill"]], int(settings["size"])
    batch = max(1, 65536 // size**2)  # small ones several at once, or the clock would be measured

    def seconds(allocate: Callable[..., Tensor]) -> float:
        torch.manual_seed(seed)  # both draw the same numbers
        start = time.thread_time()
        for _ in range(batch):
            fill(allocate(size, size))
        return (time.thread_time() - start) / batch

    with torch.no_grad():
        fill(torch.empty(8, 8)), torch.zeros(size, size)  # the first time is always slow
        times = []
        for turn in range(settings["repeats"]):
            order = (torch.empty, torch.zeros) if turn % 2 == 0 else (torch.zeros, torch.empty)
            pair = {allocate: seconds(allocate) for allocate in order}
            times.append((pair[torch.empty], pair[torch.zeros]))
    return {
        "ratio": statistics.median(zeros / empty for empty, zeros in times),
        "saved": statistics.median(1 - empty / zeros for empty, zeros in times),
        "microseconds": 1e6 * statistics.median(empty for empty, _ in times),
    }


def questions(budget: Budget) -> list[Question]:
    def costs_more(fill: str) -> Question:
        def ratio(runs: BySeed) -> float:
            return float(runs[f"{fill} {LARGEST}"]["ratio"])

        text = {
            "nothing": "16 megabytes, allocated only: zeros takes longer than empty",
            "normscope's normal": "allocated and drawn by normscope: zeros first takes longer",
            "torch's normal": "allocated and drawn by torch's trunc_normal_: zeros first takes longer",
        }[fill]
        return Question(text, ratio, EQUAL, "above", "times")

    return [costs_more(fill) for fill in FILLS if fill != "ones"]


def charts(runs: VariantRuns) -> list[Chart]:
    def lines(fills: list[str]) -> dict[str, dict[float, str]]:
        return {f"then {fill}": {float(size**2): f"{fill} {size}" for size in TURNS} for fill in fills}

    fills = list(FILLS)
    return [
        by_number(
            "What empty saves where weights are drawn",
            "entries",
            "share of the time with zeros",
            runs,
            "saved",
            lines(fills[2:]),
            levels=[("nothing saved", 0.0)],
            log_x=True,
        ),
        by_number(
            "Where filling is cheap or left out",
            "entries",
            "seconds, zeros / empty",
            runs,
            "ratio",
            lines(fills[:2]),
            levels=[("no difference", EQUAL)],
            log_x=True,
            log_y=True,
        ),
    ]


CLAIM = Claim(
    number=6,
    name="empty-vs-zeros",
    kind="measured",
    statement="To allocate a weight with torch.empty and draw it is cheaper than with torch.zeros and draw it.",
    source="Notes on initialization, which call it the main reason to write torch.empty.",
    design=(
        f"Square weights of 64 to {LARGEST}, 16 kilobytes to 16 megabytes, allocated either way and then filled: not "
        "at all, with ones, with normscope's cut normal, with torch's. Both ways take turns in one thread, and in "
        "being the first; the figure is the median of the ratios of its seconds. The largest size is judged, since "
        "the notes speak of large ones; the first chart shows the share that is saved at every size."
    ),
    rule=f"Supported if, at the largest size, the interval of each ratio is above {EQUAL:g}, drawing included.",
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "torch.empty is cheaper even for a weight that is drawn at random; the chart says by what share. It is "
            "done once a run, so the reason to write it remains that it says what it means: these numbers will be "
            "overwritten."
        ),
        "contradicted": (
            "Where the numbers are drawn at random, zeroing them first does not make it slower. Write torch.empty "
            "because it says that the numbers will be overwritten, not for speed."
        ),
        "inconclusive": (
            "Whatever is saved is lost in the noise of the clock. Write torch.empty because it says that the numbers "
            "will be overwritten, not for speed."
        ),
    },
    remark=(
        "The notes give the speed as the main reason. Allocating alone is many times faster with torch.empty, but a "
        "weight is not left alone: drawing it takes most of the time, so the share that can be saved is small."
    ),
    revised="its line lay on the expected answer",
)
