"""The loss along the gradient, with and without BatchNorm: how much it varies, how far the gradient holds."""

import math
import statistics
from collections.abc import Mapping

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.report.charts import OF_SEEDS, curves
from normscope.lab.trials.conv_stack import ConvStack, checkpoints, training
from normscope.lab.trials.digits import FIXED_SPLIT, load_digits
from normscope.lab.trials.gradient_walk import probe_along_gradient
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import LOG2_RATIO, BySeed, Metrics, Question
from normscope.render.chart import COLORS, Chart, ChartLine

RATE = 1 / 32
"""A quarter of the largest rate at which the network without a norm trains (see `large_rates`): four steps' length is
about as far as it can go."""
NAMES = {"no norm": "none", "BatchNorm": "batch"}
MEASURES = {"variation": "range of the loss", "change": "change of the gradient", "slope": "effective smoothness"}
"""The figures that the claim is about, and what they are called."""
LEAST = 1e-12
"""What counts as no change at all: a ratio cannot be taken to zero."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    steps, looks = budget.pick(quick=400, full=4000), budget.pick(quick=40, full=200)
    return {
        norm: {"norm": norm, "batch": 32, "lr": RATE, "steps": steps, "checkpoints": looks} for norm in NAMES.values()
    }


def measure(settings: Settings, seed: int) -> Metrics:
    """Train, and now and then walk along the gradient of the next batch, and come back.

    What all looks have in common is their geometric mean: one look at which the loss left all bounds does not decide.
    """
    digits, batch, lr = load_digits(), int(settings["batch"]), float(settings["lr"])
    model, looks = ConvStack(settings["norm"]), checkpoints(settings["steps"], settings["checkpoints"])
    found: dict[str, list[tuple[int, float]]] = {}
    for step, _ in enumerate(training(model, digits, batch=batch, steps=settings["steps"], lr=lr, seed=seed), 1):
        if step - 1 not in looks:
            continue
        losses, changes, slopes = zip(*probe_along_gradient(model, *digits.batch(step, batch, seed), lr), strict=True)
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
            found.setdefault(name, []).append((step, max(value, LEAST)))
    usual = {f"usual_{name}": statistics.geometric_mean(y for _, y in found[name]) for name in MEASURES}
    return {**found, **usual}


def questions(budget: Budget) -> list[Question]:
    def smaller(metric: str, text: str) -> Question:
        def effect(runs: BySeed) -> float:
            return math.log2(runs["batch"][f"usual_{metric}"] / runs["none"][f"usual_{metric}"])

        return Question(f"with BatchNorm {text}", effect, side="below", unit=LOG2_RATIO)

    return [
        smaller("variation", "the loss varies less along the gradient"),
        smaller("change", "the gradient changes less along the way"),
        smaller("slope", "it changes less for each unit of distance, at most (effective smoothness)"),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    def chart(title: str, y_label: str, low: str, middle: str, high: str) -> Chart:
        lines = [
            ChartLine(
                label,
                runs.curve(norm, middle),
                colour,
                interval=[
                    (x, least, most)
                    for (x, least), (_, most) in zip(runs.curve(norm, low), runs.curve(norm, high), strict=True)
                ],
                interval_label="least to greatest on the way, each the mean of the seeds",
            )
            for (label, norm), colour in zip(NAMES.items(), COLORS, strict=False)
        ]
        return Chart(title, "step", y_label, lines, log_y=True)

    smoothness = "Effective smoothness: smaller is smoother"
    return [
        chart("Loss, from half a step to four along the gradient", "nats", "loss_low", "loss", "loss_high"),
        chart("Change of the gradient on the way", "l2 distance", "change_low", "change", "change_high"),
        curves(smoothness, "step", "change by distance", runs, "slope", NAMES, log_y=True),
        _ratios(runs),
    ]


def _ratios(runs: VariantRuns) -> Chart:
    """BatchNorm's figure divided by that without a norm, look by look: when it is smoother, and when it is not yet."""
    lines: list[ChartLine] = []
    rougher: set[int] = set()
    for (metric, label), colour in zip(MEASURES.items(), COLORS, strict=False):
        by_step: dict[int, list[float]] = {}
        for seed in runs.by_seed():
            for (step, with_norm), (_, without) in zip(seed["batch"][metric], seed["none"][metric], strict=False):
                by_step.setdefault(step, []).append(with_norm / without)
        usual = [(step, statistics.geometric_mean(ratios)) for step, ratios in by_step.items()]
        rougher |= {step for step, ratio in usual if ratio >= 1}
        reach = [(step, min(ratios), max(ratios)) for step, ratios in by_step.items()]
        lines.append(ChartLine(label, usual, colour, interval=reach, interval_label=OF_SEEDS))
    smoother = [step for step, _ in lines[0].points if step not in rougher]
    when = f"first at step {smoother[0]:g}" if smoother else "at no look"
    title = f"BatchNorm divided by no norm: smoother by all three {when}"
    return Chart(title, "step", "ratio, below 1 smoother", lines, reference_lines=[("the same", 1.0)], log_y=True)


CLAIM = Claim(
    number=21,
    name="batchnorm-smoothness",
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
        "divided by the distance gone. Over training each is taken by its geometric mean. The bands of the first two "
        "charts go from the least to the greatest on the way, each the mean of the seeds; those of the third, whose "
        f"figure is already the greatest on the way, and of the fourth are over the seeds. {FIXED_SPLIT}"
    ),
    rule=(
        "Supported if, for each of the three, the interval of log2 of the ratio, the geometric mean over training with "
        "BatchNorm to that without a norm, is below 0."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "Over this training as a whole, a gradient holds for a longer way with BatchNorm, so steps can be larger. "
            "It need not be so from the first step: the last chart shows when."
        ),
        "contradicted": (
            "In this network BatchNorm does not make the loss smoother in all three ways, at the same step; where it "
            "trains better, something else is why."
        ),
        "inconclusive": "Not all three measures tell the two networks apart, with these seeds; do not argue by them.",
    },
    remark=(
        "Both networks are compared at the same learning rate, as in the paper. BatchNorm makes the loss independent "
        "of the length of the weights before it, so that distances between weights do not mean the same in both. A "
        "mean over training hides its beginning, where BatchNorm can be the rougher of the two by all three measures: "
        "the last chart says at which look it is the smoother by all three for the first time."
    ),
    revised="a part of its design",
)
