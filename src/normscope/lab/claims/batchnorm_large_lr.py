"""With BatchNorm a network of nine layers still trains at learning rates that ruin it without."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.report.charts import curves
from normscope.lab.trials.conv_stack import ConvStack, training
from normscope.lab.trials.digits import FIXED_SPLIT, load_digits
from normscope.lab.trials.images import UNIFORM_LOSS
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import LOG2_RATIO, BySeed, Metrics, Question
from normscope.render.chart import Chart

NAMES = {"no norm": "none", "BatchNorm": "batch", "GroupNorm": "group"}
RATES = tuple(2.0**power for power in range(-5, 4))
TRAINS = 0.5
"""It trains if its loss falls to this share of guessing's, ln 10, over the last fifth of the steps."""
NOTCHES = 1.0
"""More than one factor of two, which is as finely as the rates are laid out."""


def with_a_norm(budget: Budget) -> list[str]:
    """BatchNorm; whether it is so of another norm too, the full budget asks."""
    return budget.pick(quick=["BatchNorm"], full=["BatchNorm", "GroupNorm"])


def variants(budget: Budget) -> Mapping[str, Settings]:
    steps, norms = budget.pick(quick=150, full=1500), [NAMES[name] for name in ("no norm", *with_a_norm(budget))]
    return {norm: {"norm": norm, "batch": 32, "steps": steps, "lrs": list(RATES)} for norm in norms}


def measure(settings: Settings, seed: int) -> Metrics:
    """Train the same network from the same first weights at every rate, and find the largest at which it trains."""
    digits, steps = load_digits(), int(settings["steps"])
    ends = []
    for lr in settings["lrs"]:
        torch.manual_seed(seed)
        losses = list(
            training(ConvStack(settings["norm"]), digits, batch=settings["batch"], steps=steps, lr=lr, seed=seed)
        )
        last = losses[-max(1, steps // 5) :]
        ends.append((lr, min(UNIFORM_LOSS, sum(last) / len(last)) if len(losses) == steps else UNIFORM_LOSS))
    # Where it never trains, its largest rate is at most the next one below.
    largest = max([lr for lr, loss in ends if loss <= TRAINS * UNIFORM_LOSS], default=min(settings["lrs"]) / 2)
    return {"ends": ends, "largest": largest, "best": min(loss for _, loss in ends)}


def questions(budget: Budget) -> list[Question]:
    def larger(name: str) -> Question:
        def notches(runs: BySeed) -> float:
            return math.log2(runs[NAMES[name]]["largest"] / runs["none"]["largest"])

        text = f"the largest rate that trains is more than twice as large with {name} as without a norm"
        return Question(text, notches, threshold=NOTCHES, side="above", unit=LOG2_RATIO)

    return [larger(name) for name in with_a_norm(budget)]


def charts(runs: VariantRuns) -> list[Chart]:
    drawn = curves(
        "Loss that training ends at, by learning rate",
        "learning rate",
        "nats",
        runs,
        "ends",
        {name: norm for name, norm in NAMES.items() if norm in runs.variants},
        log_x=True,
    )
    return [replace(drawn, reference_lines=[("guessing", UNIFORM_LOSS), ("trains", TRAINS * UNIFORM_LOSS)])]


CLAIM = Claim(
    number=22,
    name="batchnorm-large-lr",
    kind="trained",
    statement="With BatchNorm, larger learning rates still converge than without a norm.",
    source=(
        "Notes on normalization; Santurkar et al. 2018, “How Does Batch Normalization Help Optimization?”; Bjorck et "
        "al. 2018, “Understanding Batch Normalization”."
    ),
    design=(
        "Nine plain convolutions on the digits, with BatchNorm or without a norm, with the full budget also with "
        "GroupNorm of four groups; by SGD without momentum at a constant rate, batch 32; rates from 1/32 to 8 in "
        "factors of two. It trains if the training loss over the last fifth of the steps is at most "
        f"{TRAINS:g} of guessing's, ln 10. The weights start as He et al. say, which is what a network without norms "
        f"needs. {FIXED_SPLIT}"
    ),
    rule=(
        "Supported if the interval of log2 of the ratio, the largest rate that trains with BatchNorm to that without "
        f"a norm, is above {NOTCHES:g}; with the full budget GroupNorm's too."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "BatchNorm buys room above: a rate that ruins this network without a norm still trains it with BatchNorm, "
            "so the rate needs less care, and can be raised when BatchNorm is added."
        ),
        "contradicted": (
            "In this network adding the norm is by itself no reason to raise the learning rate: the answers below say "
            "of which norm."
        ),
        "inconclusive": (
            "Whether the norm makes more room than one factor of two, these seeds leave open. Look for the rate anew "
            "whenever the norm changes."
        ),
    },
    remark=(
        "The notes say it of norms in general. The quick budget asks it of BatchNorm only, and its verdict is on that."
    ),
)
