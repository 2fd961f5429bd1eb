"""How much the scale of the initialization matters, with pre-norm and with post-norm."""

import statistics

from normscope.lab import toolkit as lab
from normscope.lab.trials.text import NARROW, SMALL_GPT, small_gpt, train_text

USUAL = 1.0
WIRINGS = ("pre", "post")

FEW_LRS = (4e-3, 8e-3, 2e-2, 7e-2, 3e-1)
"""Denser where they are small: slightly above its best learning rate, post-norm learns almost nothing."""
MORE_LRS = (1e-3, 2e-3, *FEW_LRS, 1.0, 3.0)
"""Longer training needs smaller learning rates, larger weights need larger ones."""


def scales(budget: lab.Budget) -> tuple[float, ...]:
    """As far above the usual scale as below it."""
    return budget.pick(quick=(0.1, 0.3, 1.0, 3.0, 10.0), full=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0))


def name(wiring: str, scale: float) -> str:
    return f"{wiring} {scale:g}"


def variants(budget: lab.Budget) -> lab.Variants:
    """With the quick budget small enough to try every learning rate at every scale."""
    steps, depth = budget.pick(quick=(130, 4), full=(800, 6))
    model = budget.pick(quick=NARROW, full=SMALL_GPT["model"])
    return {
        name(wiring, scale): {**small_gpt(steps, model, depth=depth, wiring=wiring), "init_scale": scale}
        for wiring in WIRINGS
        for scale in scales(budget)
    }


def rise(runs: lab.BySeed, wiring: str, wrong: tuple[float, ...]) -> float:
    """How far the mean loss over the wrong scales is above the loss at the usual scale."""
    losses = [float(runs[name(wiring, scale)]["loss"]) for scale in wrong]
    return statistics.fmean(losses) - float(runs[name(wiring, USUAL)]["loss"])


def questions(budget: lab.Budget) -> list[lab.Question]:
    def steeper(side: str, wrong: tuple[float, ...]) -> lab.Question:
        text = (
            f"initial weights too {side}, {min(wrong):g} to {max(wrong):g} times the usual scale: post-norm's loss "
            f"rises by at least {lab.TEXT_MARGIN} nats more than pre-norm's, on average"
        )
        return lab.Question(
            text, lambda runs: rise(runs, "post", wrong) - rise(runs, "pre", wrong), lab.TEXT_MARGIN, unit="nats"
        )

    above = tuple(scale for scale in scales(budget) if scale > USUAL)
    below = tuple(scale for scale in scales(budget) if scale < USUAL)
    return [steeper("large", above), steeper("small", below)]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    numbers = sorted({float(variant.split()[1]) for variant in runs.variants})
    lines = {f"{wiring}-norm": {scale: name(wiring, scale) for scale in numbers} for wiring in WIRINGS}
    x_label, losses = "scale of all initial weights", lab.lines_by_number(runs, "loss", lines)
    lrs = lab.lines({label: [(x, runs.lrs[variant]) for x, variant in found.items()] for label, found in lines.items()})
    return [
        lab.Chart("Loss by initialization scale", x_label, "nats per byte", losses, log_x=True),
        lab.Chart("Tuned learning rate", x_label, "learning rate", lrs, log_x=True, log_y=True),
    ]


tuning = lab.lr_grid(FEW_LRS, MORE_LRS, seeds=(2, 2))
EXPERIMENT = lab.Experiment(variants, train_text, questions, charts, tuning)
