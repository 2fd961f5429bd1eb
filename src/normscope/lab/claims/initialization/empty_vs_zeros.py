"""A buffer that is overwritten does not need to be zeroed first. Is the difference measurable?"""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from normscope.blocks.initialization import GLOROT_TRUNCATED
from normscope.lab import toolkit as lab
from normscope.lab.trials.measuring import median_ratio, times_in_turn

REPEATS = {64: 20, 256: 20, 512: 12, 1024: 6, 2048: 4}
"""Widths of square weights, and how often each is measured; the largest takes 16 MB and a fifth of a second."""
LARGEST = max(REPEATS)
EQUAL = 1.0
"""Cheaper means less time, by however little; how much is saved is left to the reader."""
FILLS: Mapping[str, Callable[[Tensor], object]] = {
    "nothing": lambda weight: weight,  # allocation only
    "ones": nn.init.ones_,
    "normscope's normal": GLOROT_TRUNCATED.fill_,
    "torch's normal": partial(nn.init.trunc_normal_, std=0.02, a=-0.06, b=0.06),
}
"""What follows the allocation; all but the first write every entry."""
ASKED = {
    "nothing": "16 MB, allocation only: zeros takes longer than empty",
    "normscope's normal": "allocated and filled by normscope: zeros first takes longer",
    "torch's normal": "allocated and filled by torch's trunc_normal_: zeros first takes longer",
}


def variants(budget: lab.Budget) -> lab.Variants:
    times = budget.pick(quick=1, full=16)
    return {
        f"{fill} {size}": {"fill": fill, "size": size, "repeats": times * repeats}
        for fill in FILLS
        for size, repeats in REPEATS.items()
    }


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Time zeros and fill relative to empty and fill.

    The ratio is the median over consecutive pairs whose order alternates, in CPU time of the thread.
    """
    fill, size = FILLS[settings["fill"]], int(settings["size"])
    batch = max(1, 65536 // size**2)  # several small ones at once: a single one is below the clock's resolution

    def seconds(allocate: Callable[..., Tensor]) -> float:
        torch.manual_seed(seed)  # both draw the same numbers
        start = time.thread_time()
        for _ in range(batch):
            fill(allocate(size, size))
        return (time.thread_time() - start) / batch

    with torch.no_grad():
        fill(torch.empty(8, 8)), torch.zeros(size, size)  # warm up
        runs = {"empty": partial(seconds, torch.empty), "zeros": partial(seconds, torch.zeros)}
        times = times_in_turn(runs, settings["repeats"])
    return {
        "ratio": median_ratio(times["zeros"], times["empty"]),
        "saved": 1 - median_ratio(times["empty"], times["zeros"]),
        "microseconds": 1e6 * statistics.median(times["empty"]),
    }


def questions(budget: lab.Budget) -> list[lab.Question]:
    def costs_more(fill: str, text: str) -> lab.Question:
        return lab.Question(text, lambda runs: float(runs[f"{fill} {LARGEST}"]["ratio"]), EQUAL, "above", "times")

    return [costs_more(fill, text) for fill, text in ASKED.items()]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    named = {f"then {fill}": {float(size**2): f"{fill} {size}" for size in REPEATS} for fill in FILLS}
    cheap, drawn = dict(list(named.items())[:2]), dict(list(named.items())[2:])
    saved, ratios = lab.lines_by_number(runs, "saved", drawn), lab.lines_by_number(runs, "ratio", cheap)
    title, share, nothing = "Saved by empty if weights are drawn", "share of time with zeros", [("nothing saved", 0.0)]
    other, ratio, equal = "If the fill is cheap or absent", "seconds, zeros / empty", [("no difference", EQUAL)]
    return [
        lab.Chart(title, "entries", share, saved, nothing, log_x=True),
        lab.Chart(other, "entries", ratio, ratios, equal, log_x=True, log_y=True),
    ]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
