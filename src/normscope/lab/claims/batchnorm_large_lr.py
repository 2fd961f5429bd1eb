"""With BatchNorm a network of nine layers still trains at learning rates at which it fails without."""

import torch

from normscope.lab import toolkit as lab
from normscope.lab.trials.conv_stack import ConvStack, training
from normscope.lab.trials.digits import FIXED_SPLIT, load_digits
from normscope.lab.trials.images import UNIFORM_LOSS

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
    digits, steps, batch = load_digits(), int(settings["steps"]), settings["batch"]
    ends = []
    for lr in settings["lrs"]:
        torch.manual_seed(seed)
        losses = list(training(ConvStack(settings["norm"]), digits, batch=batch, steps=steps, lr=lr, seed=seed))
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
    title, lr = "Final training loss by learning rate", "learning rate"
    return [lab.curves(title, lr, "nats", runs, "ends", named, log_x=True, reference_lines=levels)]


CLAIM = lab.Claim(
    number=22,
    name="batchnorm-large-lr",
    kind="trained",
    statement="With BatchNorm, training converges at larger learning rates than without a norm.",
    source="""Notes on normalization; Santurkar et al. 2018, “How Does Batch Normalization Help Optimization?”;
        Bjorck et al. 2018, “Understanding Batch Normalization”.""",
    design=f"""Nine plain convolutions on the digits, with BatchNorm or without a norm, with the full budget also
        with GroupNorm of four groups; by SGD without momentum at a constant learning rate, batch 32; learning rates
        from 1/32 to 8 in factors of two. A network trains if its training loss over the last fifth of the steps is
        at most {TRAINS:g} of that of a uniform guess, ln 10. The weights are initialized as in He et al., as a
        network without norms needs. {FIXED_SPLIT}""",
    rule=f"""Supported if the interval of log2 of the ratio, the largest learning rate that trains with BatchNorm to
        that without a norm, is above {FACTORS_OF_TWO:g}; with the full budget GroupNorm's too.""",
    experiment=lab.Experiment(variants, measure, questions, charts),
    supported="""BatchNorm widens the usable range: a learning rate at which this network fails without a norm still
        trains it with BatchNorm, so the learning rate needs less care, and can be raised when BatchNorm is added.""",
    contradicted="""In this network adding the norm is by itself no reason to raise the learning rate: the answers
        below say which norm.""",
    inconclusive="""These seeds leave open whether the norm gains more than one factor of two. Tune the learning
        rate again whenever the norm changes.""",
    remark="The notes say it of norms in general. The quick budget, and so its verdict, covers BatchNorm only.",
)
