"""The loss along the gradient, with and without BatchNorm: how much it varies, how far the gradient holds."""

import math
from collections.abc import Mapping

from normscope.display.chart import Chart, Line
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.runs import Runs
from normscope.lab.trials.digits import load_digits
from normscope.lab.trials.stack import Stack, checkpoints, training
from normscope.lab.trials.walk import walk
from normscope.lab.verdict import BySeed, Figures, Question

RATE = 1 / 32
"""A quarter of the largest rate at which the network without a norm trains (see `large_rates`): four steps' length is
about as far as it can go."""
NAMES = {"no norm": "none", "BatchNorm": "batch"}


def variants(budget: Budget) -> Mapping[str, Settings]:
    steps, looks = budget.pick(quick=400, full=4000), budget.pick(quick=40, full=200)
    return {norm: {"norm": norm, "batch": 32, "rate": RATE, "steps": steps, "looks": looks} for norm in NAMES.values()}


def measure(settings: Settings, seed: int) -> Figures:
    """Train, and now and then walk along the gradient of the next batch, and come back."""
    digits, batch, rate = load_digits(seed), int(settings["batch"]), float(settings["rate"])
    model, looks = Stack(settings["norm"]), checkpoints(settings["steps"], settings["looks"])
    curves: dict[str, list[tuple[int, float]]] = {}
    for step, _ in enumerate(training(model, digits, batch=batch, steps=settings["steps"], rate=rate, seed=seed), 1):
        if step - 1 not in looks:
            continue
        losses, changes, slopes = zip(*walk(model, *digits.batch(step, batch, seed), rate), strict=True)
        for name, value in {
            "loss_low": min(losses),
            "loss": sum(losses) / len(losses),
            "loss_high": max(losses),
            "variation": max(losses) - min(losses),
            "change_low": min(changes),
            "change_high": max(changes),
            "change": sum(changes) / len(changes),
            "slope": max(slopes),
        }.items():
            curves.setdefault(name, []).append((step, value))
    means = {f"mean_{name}": sum(y for _, y in curve) / len(curve) for name, curve in curves.items()}
    return {**curves, **means}


def questions(budget: Budget) -> list[Question]:
    def smaller(figure: str, text: str) -> Question:
        def effect(runs: BySeed) -> float:
            return math.log2(runs["batch"][f"mean_{figure}"] / runs["none"][f"mean_{figure}"])

        return Question(f"with BatchNorm {text}", effect, side="below", unit="factors of two")

    return [
        smaller("variation", "the loss varies less along the gradient"),
        smaller("change", "the gradient changes less along the way"),
        smaller("slope", "it changes less for each unit of distance, at most (effective smoothness)"),
    ]


def charts(runs: Runs) -> list[Chart]:
    def chart(title: str, y_label: str, low: str, middle: str, high: str) -> Chart:
        lines = [
            Line(
                label,
                runs.curve(norm, middle),
                colour,
                reach=[
                    (x, least, most)
                    for (x, least, _), (_, _, most) in zip(runs.band(norm, low), runs.band(norm, high), strict=True)
                ],
            )
            for (label, norm), colour in zip(NAMES.items(), "ab", strict=True)
        ]
        return Chart(title, "step", y_label, lines, log_y=True)

    return [
        chart("Loss, from half a step to four along the gradient", "nats", "loss_low", "loss", "loss_high"),
        chart("Change of the gradient on the way", "l2 distance", "change_low", "change", "change_high"),
        chart("Effective smoothness: smaller is smoother", "change by distance", "slope", "slope", "slope"),
    ]


CLAIM = Claim(
    number=21,
    name="smoother-landscape",
    kind="trained",
    statement=(
        "With BatchNorm the loss varies less along the gradient, gradients predict better those further on, and the "
        "effective smoothness is better."
    ),
    source=(
        "Notes on normalization; Santurkar et al. 2018, “How Does Batch Normalization Help Optimization?”, figure 4."
    ),
    design=(
        "Nine plain convolutions, with BatchNorm or without a norm, on the digits, by SGD without momentum, batch 32, "
        "both at the same rate, a quarter of the largest that trains without a norm. At points evenly spread over "
        "training, from half to four times a step along the gradient of the next batch: the range of the losses; the "
        "distance (l2) of the gradient there from the one at the start, on average; and the largest of these distances "
        "divided by the distance gone. Bands are from the least to the greatest over the way and the seeds."
    ),
    rule=(
        "Supported if, for each of the three, the interval of log2 of the ratio, the mean over training with BatchNorm "
        "to that without a norm, is below 0."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "With BatchNorm a gradient holds for a longer way, so steps can be larger. That is a reason to expect more "
            "of a norm in deep networks, where gradients change fast."
        ),
        "contradicted": (
            "In this network BatchNorm does not make the loss smoother in all three ways, at the same step; where it "
            "trains better, something else is why."
        ),
        "inconclusive": "The three measures do not tell the two networks apart in every seed; do not argue by them.",
    },
    remark=(
        "Both networks are compared at the same learning rate, as in the paper. BatchNorm makes the loss independent "
        "of the length of the weights before it, so that distances between weights do not mean the same in both."
    ),
)
