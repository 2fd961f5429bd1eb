"""BatchNorm in a language model is worse than LayerNorm, and PowerNorm closes part of the gap."""

from collections.abc import Mapping

from normscope.lab.budget import Budget, get_budget
from normscope.lab.claim import Claim, LRTuning, Settings
from normscope.lab.report.charts import differences, interval_dots
from normscope.lab.statistics import confidence_interval
from normscope.lab.trials.text import SMALL_GPT, TEXT_MARGIN, train_text
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Question
from normscope.render.chart import COLORS, Chart

NORMS = {"LayerNorm": "layer", "BatchNorm": "batch", "PowerNorm": "power"}
NORM_WARMUP = 0.2
"""The share of the steps in which PowerNorm still divides by the batch's own statistic."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    steps = budget.pick(quick=340, full=4000)
    return {
        label: {
            **SMALL_GPT,
            # By the batch's statistics every token is told of those after it, which a GPT refuses unless it is studied.
            "model": {**SMALL_GPT["model"], "norm": norm, "activation": "gelu", "allow_future_leak": norm != "layer"},
            "steps": steps,
            "norm_warmup": round(NORM_WARMUP * steps) if norm == "power" else 0,
        }
        for label, norm in NORMS.items()
    }


def questions(budget: Budget) -> list[Question]:
    def more(one: str, other: str) -> Question:
        def effect(runs: BySeed) -> float:
            return float(runs[one]["loss"] - runs[other]["loss"])

        threshold = TEXT_MARGIN if other == "LayerNorm" else 0.0
        by = f" by more than {threshold} nats" if threshold else ", which closes a part of the gap if there is one"
        return Question(f"{one}'s loss on held-out text is above {other}'s{by}", effect, threshold, unit="nats")

    return [more("BatchNorm", "LayerNorm"), more("BatchNorm", "PowerNorm")]


def charts(runs: VariantRuns) -> list[Chart]:
    last = [confidence_interval([metrics["curve"][-1][1] for metrics in runs.metrics[norm]]) for norm in NORMS]
    held_out = [runs.interval(norm, "loss") for norm in NORMS]
    both = [
        interval_dots("at the end of training", [(place - 0.06, found) for place, found in enumerate(last)], COLORS[0]),
        interval_dots("on held-out text", [(place + 0.06, found) for place, found in enumerate(held_out)], COLORS[1]),
    ]
    others = {"LayerNorm": TEXT_MARGIN, "PowerNorm": 0.0}
    pairs = {"difference": [("BatchNorm", other) for other in others]}
    return [
        Chart("Loss in training, and on held-out text", "norm", "nats a byte", both, categories=list(NORMS)),
        differences(
            "BatchNorm's held-out loss minus another norm's, seed by seed",
            "the other",
            "nats a byte",
            runs,
            "loss",
            pairs,
            list(others),
            asked=questions(get_budget("quick")),
            own_levels=("the line", list(others.values())),
        ),
    ]


CLAIM = Claim(
    number=18,
    name="batchnorm-on-text",
    kind="trained",
    statement="BatchNorm in a language model is worse than LayerNorm; PowerNorm closes part of the gap.",
    source=(
        "Notes on normalization; Shen, Yao, Gholami, Mahoney and Keutzer 2020, “PowerNorm: Rethinking Batch "
        "Normalization in Transformers”."
    ),
    design=(
        "A GPT of two pre-norm blocks with GELU on the text, with LayerNorm over the features of a token, or "
        "BatchNorm or PowerNorm of each feature over all tokens of a batch; all else is the same. PowerNorm uses the "
        "batch's own statistic for a fifth of the steps and its running one from then on. What is compared is the loss "
        "on held-out text, where BatchNorm and PowerNorm use their running statistics."
    ),
    rule=(
        f"Supported if the interval of BatchNorm's loss minus LayerNorm's is above {TEXT_MARGIN} nats, and that of "
        "BatchNorm's minus PowerNorm's above 0: any part of the gap is a part. Where the first is not so, there is no "
        "gap that one would notice, and the second says no more than which of the two is better."
    ),
    variants=variants,
    measure=train_text,
    questions=questions,
    charts=charts,
    tuning=lambda budget: LRTuning(lrs=(3e-3, 1e-2, 3e-2, 1e-1), seeds=budget.pick(quick=1, full=3)),
    meaning={
        "supported": (
            "Normalize each token by itself. If statistics have to be shared between tokens, PowerNorm was the better "
            "of the two ways to do it in a model of this size."
        ),
        "contradicted": (
            "In a model of this size it is not as claimed: the table says whether BatchNorm is not noticeably worse "
            "than LayerNorm, so that there is no gap to close, or PowerNorm not better than BatchNorm, or both."
        ),
        "inconclusive": (
            "A part of it cannot be told from chance; the table says which. LayerNorm needs no statistics kept, nor "
            "a decision between those of the batch and those of before."
        ),
    },
    remark=(
        "In a causal model BatchNorm's statistics in training include tokens that come later, so its training loss may "
        "be helped by what it has to predict; on held-out text it has only its running statistics, and nothing to "
        "peek at. The notes name two reasons against it, padding and features that mean something else in every "
        "word; there is no padding here. PowerNorm is the paper's algorithm, but not all that its authors train with: "
        "their code keeps to the batch's statistic for thousands of steps, more than there are here, and scales each "
        "token by its own root mean square, in groups of features, before. So this says nothing of their full recipe."
    ),
    revised="a part of its design",
    first_verdict="contradicted",
)
