"""Memory that is filled anyway need not be zeroed first. Does it show?"""

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from normscope.blocks.initialisation import GLOROT_TRUNCATED
from normscope.display.chart import Chart
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.report.charts import by_number
from normscope.lab.runs import Runs
from normscope.lab.verdict import BySeed, Figures, Question

SIZES = (64, 256, 512)
"""The widths of square weights; the largest takes a megabyte."""
WORTH_IT = 1.02
"""Of the time: a habit that saves less than two hundredths of drawing weights, once a run, saves nothing."""


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
    repeats = budget.pick(quick=60, full=1000)
    return {f"{fill} {size}": {"fill": fill, "size": size, "repeats": repeats} for fill in FILLS for size in SIZES}


def measure(settings: Settings, seed: int) -> Figures:
    """The time of zeros and filling as a multiple of that of empty and filling: the median of turns right after one
    another, by the thread's own clock, which stands still while other programs have the core."""
    fill, size = FILLS[settings["fill"]], int(settings["size"])
    batch = max(1, 65536 // size**2)  # small ones several at once, or the clock would be measured

    def seconds(allocate: Callable[..., Tensor]) -> float:
        torch.manual_seed(seed)  # both draw the same numbers
        start = time.thread_time()
        for _ in range(batch):
            fill(allocate(size, size))
        return (time.thread_time() - start) / batch

    with torch.no_grad():
        seconds(torch.empty), seconds(torch.zeros)  # the first time is always slow
        times = [(seconds(torch.empty), seconds(torch.zeros)) for _ in range(settings["repeats"])]
    ratio = statistics.median(zeros / empty for empty, zeros in times)
    return {"ratio": ratio, "microseconds": 1e6 * statistics.median(empty for empty, _ in times)}


def questions(budget: Budget) -> list[Question]:
    def costs_more(fill: str) -> Question:
        def ratio(runs: BySeed) -> float:
            return float(runs[f"{fill} {SIZES[-1]}"]["ratio"])

        text = {
            "nothing": "a megabyte, allocated only: zeros takes longer than empty",
            "normscope's normal": "allocated and drawn by normscope: zeros first takes at least 2% longer",
            "torch's normal": "allocated and drawn by torch's trunc_normal_: zeros first takes at least 2% longer",
        }[fill]
        return Question(text, ratio, WORTH_IT, "above", "times")

    return [costs_more(fill) for fill in FILLS if fill != "ones"]


def charts(runs: Runs) -> list[Chart]:
    def chart(title: str, fills: list[str]) -> Chart:
        lines = {f"then {fill}": {float(size**2): f"{fill} {size}" for size in SIZES} for fill in fills}
        levels = [("no difference", 1.0)]
        return by_number(title, "entries", "seconds, zeros / empty", runs, "ratio", lines, levels=levels, log_x=True)

    fills = list(FILLS)
    return [
        chart("Zeros first: how many times as long", fills[2:]),
        chart("Where filling is cheap or left out", fills[:2]),
    ]


CLAIM = Claim(
    number=6,
    name="empty-before-filling",
    kind="measured",
    statement="To allocate a weight with torch.empty and draw it is cheaper than with torch.zeros and draw it.",
    source="Notes on initialisation, which call it the main reason to write torch.empty.",
    design=(
        "Square weights of 64 to 512, allocated either way and then filled: not at all, with ones, with normscope's "
        "cut normal, with torch's. Both ways take turns in one thread; the figure is the median of the ratios of its "
        "seconds, and what is judged is the largest size."
    ),
    rule=f"Supported if, at the largest size, the interval of each ratio is above {WORTH_IT}, drawing included.",
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "torch.empty saves a measurable share even of a weight that is drawn at random. It is done once a run, so "
            "the reason to write it remains that it says what it means: these numbers will be overwritten."
        ),
        "contradicted": (
            "Zeroing costs next to nothing beside drawing random numbers, which takes many times longer. Write "
            "torch.empty because it says that the numbers will be overwritten, not for speed."
        ),
        "inconclusive": (
            "Whatever is saved is lost in the noise of the clock. Write torch.empty because it says that the numbers "
            "will be overwritten, not for speed."
        ),
    },
)
