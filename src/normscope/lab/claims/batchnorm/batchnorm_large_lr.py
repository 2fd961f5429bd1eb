"""With BatchNorm a network of nine layers still trains at learning rates at which it fails without."""

import torch

from normscope.lab import toolkit as lab
from normscope.lab.trials.conv_stack import ConvStack
from normscope.lab.trials.images import UNIFORM_LOSS, load_digits, train_steps

NAMES = {"no norm": "none", "BatchNorm": "batch", "GroupNorm": "group"}
LRS = tuple(2.0**power for power in range(-5, 4))
TRAINS = 0.5
"""A network trains if its loss over the last fifth of the steps falls to this share of the uniform loss, ln 10."""
FACTORS_OF_TWO = 1.0
"""More than one factor of two, the spacing of the learning rates."""


def with_a_norm(budget: lab.Budget) -> list[str]:
    """BatchNorm; the full budget also asks about another norm."""
    return budget.pick(quick=["BatchNorm"], full=["BatchNorm", "GroupNorm"])


def variants(budget: lab.Budget) -> lab.Variants:
    steps, norms = budget.pick(quick=150, full=1500), [NAMES[name] for name in ("no norm", *with_a_norm(budget))]
    return {norm: {"norm": norm, "batch": 32, "steps": steps, "lrs": list(LRS)} for norm in norms}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Train from the same initialization at every learning rate, and find the largest at which it trains."""
    digits, steps = load_digits(), int(settings["steps"])
    ends = []
    for lr in settings["lrs"]:
        torch.manual_seed(seed)
        chosen = {**settings, "lr": lr, "optimizer": "plain sgd"}
        losses = list(train_steps(ConvStack(settings["norm"]), digits, chosen, steps, seed))
        last = losses[-max(1, steps // 5) :]
        ends.append((lr, min(UNIFORM_LOSS, sum(last) / len(last)) if len(losses) == steps else UNIFORM_LOSS))
    # If it never trains, its largest learning rate is at most the next one below.
    largest = max([lr for lr, loss in ends if loss <= TRAINS * UNIFORM_LOSS], default=min(settings["lrs"]) / 2)
    return {"ends": ends, "largest": largest, "best": min(loss for _, loss in ends)}


def questions(budget: lab.Budget) -> list[lab.Question]:
    text = "the largest learning rate that trains is more than twice as large with {} as without a norm"
    return [
        lab.log2_ratio(text.format(name), NAMES[name], "none", "largest", threshold=FACTORS_OF_TWO)
        for name in with_a_norm(budget)
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    named = {name: norm for name, norm in NAMES.items() if norm in runs.variants}
    levels = [("uniform guess", UNIFORM_LOSS), ("trains", TRAINS * UNIFORM_LOSS)]
    title, lines = "Final training loss by learning rate", lab.curves(runs, "ends", named)
    return [lab.Chart(title, "learning rate", "nats", lines, levels, log_x=True)]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
