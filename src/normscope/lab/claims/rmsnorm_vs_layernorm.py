"""RMSNorm is as good as LayerNorm in a GPT, whatever the activation."""

from collections.abc import Mapping

from normscope.lab.budget import Budget, get_budget
from normscope.lab.claim import Claim, LRTuning, Settings
from normscope.lab.report.charts import categories, differences
from normscope.lab.trials.text import SMALL_GPT, TEXT_MARGIN, train_text
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Question
from normscope.render.chart import Chart

ACTIVATIONS = ("relu", "gelu", "swiglu", "relu2")
NORMS = ("layer", "rms")


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {
        f"{norm} {activation}": {
            **SMALL_GPT,
            "model": {**SMALL_GPT["model"], "norm": norm, "activation": activation},
            "steps": budget.pick(quick=170, full=2000),
        }
        for activation in ACTIVATIONS
        for norm in NORMS
    }


def questions(budget: Budget) -> list[Question]:
    def excess(activation: str) -> Question:
        def effect(runs: BySeed) -> float:
            return float(runs[f"rms {activation}"]["loss"] - runs[f"layer {activation}"]["loss"])

        text = f"with {activation} RMSNorm's loss is at most {TEXT_MARGIN} nats above LayerNorm's"
        return Question(text, effect, threshold=TEXT_MARGIN, side="below", unit="nats")

    return [excess(activation) for activation in ACTIVATIONS]


def charts(runs: VariantRuns) -> list[Chart]:
    pairs = {"difference": [(f"rms {activation}", f"layer {activation}") for activation in ACTIVATIONS]}
    lines = {norm: [f"{norm} {activation}" for activation in ACTIVATIONS] for norm in NORMS}
    return [
        differences(
            "RMSNorm's loss minus LayerNorm's, seed by seed",
            "activation",
            "nats a byte",
            runs,
            "loss",
            pairs,
            ACTIVATIONS,
            asked=questions(get_budget("quick")),
            levels=[("what would not be noticed", TEXT_MARGIN)],
        ),
        categories("Loss on held-out text", "activation", "nats a byte", runs, "loss", lines, ACTIVATIONS),
    ]


CLAIM = Claim(
    number=17,
    name="rmsnorm-vs-layernorm",
    kind="trained",
    statement="RMSNorm reaches LayerNorm's loss in a GPT, with ReLU, GELU, SwiGLU and ReLU².",
    source="Notes on normalization; Zhang and Sennrich 2019, “Root Mean Square Layer Normalization”.",
    design=(
        "A GPT of two pre-norm blocks on the text, with either norm and each activation; all else is Llama's. "
        "LayerNorm has its bias and its centring, RMSNorm neither."
    ),
    rule=(
        "Supported if with every activation the interval of RMSNorm's loss minus LayerNorm's is below "
        f"{TEXT_MARGIN} nats."
    ),
    variants=variants,
    measure=train_text,
    questions=questions,
    charts=charts,
    tuning=lambda budget: LRTuning(lrs=(3e-3, 1e-2, 3e-2), seeds=budget.pick(quick=1, full=3)),
    meaning={
        "supported": (
            "In a model of this size RMSNorm can take LayerNorm's place: it has no bias to keep, and costs no loss "
            "that would be noticed. Whether it is quicker too depends on the kernel."
        ),
        "contradicted": (
            "Keep LayerNorm with the activations where RMSNorm is behind: there its centring or its bias is worth "
            "something."
        ),
        "inconclusive": (
            "With at least one activation these seeds leave it open whether RMSNorm costs more than "
            f"{TEXT_MARGIN} nats, "
            "which would be noticed; the table says with which, and how much it may be. With any other it costs less."
        ),
    },
    remark=(
        "That RMSNorm computes less does not by itself make it quicker, for this depends on the kernel: the claim "
        "norm-speed measures torch's own two and normscope's on a CPU."
    ),
)
