"""BatchNorm in a language model is worse than LayerNorm, and PowerNorm closes part of the gap."""

from collections.abc import Mapping

from normscope.display.chart import COLOURS, Chart
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings, Tuning
from normscope.lab.report.charts import differences, dots
from normscope.lab.runs import Runs
from normscope.lab.statistics import confidence_interval
from normscope.lab.trials.text import SMALL, train_text
from normscope.lab.verdict import BySeed, Question

NORMS = {"LayerNorm": "layer", "BatchNorm": "batch", "PowerNorm": "power"}
MARGIN = 0.03
"""Nats a byte: whoever chooses a norm would not notice less, so less is not "worse"."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {
        label: {
            **SMALL,
            # In training BatchNorm tells every token of those after it, which a GPT refuses unless it is studied.
            "model": {**SMALL["model"], "norm": norm, "activation": "gelu", "allow_future_leak": norm == "batch"},
            "steps": budget.pick(quick=400, full=4000),
        }
        for label, norm in NORMS.items()
    }


def questions(budget: Budget) -> list[Question]:
    def more(one: str, other: str) -> Question:
        def effect(runs: BySeed) -> float:
            return float(runs[one]["loss"] - runs[other]["loss"])

        line = MARGIN if other == "LayerNorm" else 0.0
        by = f" by more than {line} nats" if line else ""
        return Question(f"{one}'s loss on held-out text is above {other}'s{by}", effect, line, unit="nats")

    return [more("BatchNorm", "LayerNorm"), more("BatchNorm", "PowerNorm")]


def charts(runs: Runs) -> list[Chart]:
    last = [confidence_interval([figures["curve"][-1][1] for figures in runs.figures[norm]]) for norm in NORMS]
    held_out = [runs.interval(norm, "loss") for norm in NORMS]
    both = [
        dots("at the end of training", [(place - 0.06, found) for place, found in enumerate(last)], COLOURS[0]),
        dots("on held-out text", [(place + 0.06, found) for place, found in enumerate(held_out)], COLOURS[1]),
    ]
    pairs = {"difference": [(norm, "LayerNorm") for norm in ("BatchNorm", "PowerNorm")]}
    return [
        Chart("Loss in training, and on held-out text", "norm", "nats a byte", both, names=list(NORMS)),
        differences(
            "Held-out loss minus LayerNorm's, seed by seed",
            "norm",
            "nats a byte",
            runs,
            "loss",
            pairs,
            ("BatchNorm", "PowerNorm"),
            levels=[("noticeably worse", MARGIN)],
        ),
    ]


CLAIM = Claim(
    number=18,
    name="batch-on-text",
    kind="trained",
    statement="BatchNorm in a language model is worse than LayerNorm; PowerNorm closes part of the gap.",
    source=(
        "Notes on normalization; Shen, Yao, Gholami, Mahoney and Keutzer 2020, “PowerNorm: Rethinking Batch "
        "Normalization in Transformers”."
    ),
    design=(
        "A GPT of two pre-norm blocks with GELU on the text, with LayerNorm over the features of a token, or "
        "BatchNorm or PowerNorm of each feature over all tokens of a batch; all else is the same. What is compared "
        "is the loss on held-out text, where BatchNorm uses its running statistics."
    ),
    rule=(
        f"Supported if the interval of BatchNorm's loss minus LayerNorm's is above {MARGIN} nats, and that of "
        "BatchNorm's minus PowerNorm's above 0: any part of the gap is a part."
    ),
    variants=variants,
    measure=train_text,
    questions=questions,
    charts=charts,
    tuning=lambda budget: Tuning(rates=(3e-3, 1e-2, 3e-2, 1e-1), seeds=budget.pick(quick=1, full=3)),
    meaning={
        "supported": (
            "Normalize each token by itself. If statistics have to be shared between tokens, PowerNorm is the better "
            "way to do it."
        ),
        "contradicted": (
            "The order of the three is not the one that was claimed: the table says which pair is the other way round. "
            "Where PowerNorm is the worst, running statistics in training are no remedy in a small causal model."
        ),
        "inconclusive": "The order of the three depends on the seed. Take LayerNorm, which needs no statistics kept.",
    },
    remark=(
        "In a causal model BatchNorm's statistics in training include tokens that come later, so its training loss may "
        "be helped by what it has to predict; on held-out text it has only its running statistics, and nothing to "
        "peek at. The notes name two reasons against it, padding and features that mean something else in every "
        "word; there is no padding here."
    ),
)
