"""LayerNorm over c h w in a convnet, next to BatchNorm and GroupNorm."""

from collections.abc import Mapping

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, LRTuning, Settings
from normscope.lab.report.charts import categories, curves
from normscope.lab.trials.digits import FIXED_SPLIT
from normscope.lab.trials.images import train_images
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Question
from normscope.render.chart import Chart

NAMES = {"batch": "BatchNorm", "group": "GroupNorm", "layer": "LayerNorm"}


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {
        norm: {
            "model": {"kind": "convnet", "widths": [16, 32, 64], "norm": norm},
            "batch": 32,
            "steps": budget.pick(quick=450, full=6000),
            "optimizer": "sgd",
        }
        for norm in NAMES
    }


def questions(budget: Budget) -> list[Question]:
    def excess(norm: str) -> Question:
        def effect(runs: BySeed) -> float:
            return float(runs["layer"]["loss"] - runs[norm]["loss"])

        return Question(f"LayerNorm's loss is above {NAMES[norm]}'s", effect, side="above", unit="nats")

    return [excess("batch"), excess("group")]


def charts(runs: VariantRuns) -> list[Chart]:
    names = list(NAMES.values())
    held_out = "on held-out pictures"
    return [
        categories(f"Loss {held_out}", "norm", "nats", runs, "loss", {"loss": list(NAMES)}, names),
        categories(f"Mistakes {held_out}", "norm", "share", runs, "error", {"error": list(NAMES)}, names),
        curves("Loss while training", "step", "nats", runs, "curve", {NAMES[norm]: norm for norm in NAMES}, log_y=True),
    ]


CLAIM = Claim(
    number=16,
    name="layernorm-in-convnet",
    kind="trained",
    statement="In a convnet, LayerNorm over c h w is worse than BatchNorm and than GroupNorm.",
    source=(
        "Notes on normalization; Wu and He 2018, “Group Normalization”; Ba, Kiros and Hinton 2016, “Layer "
        "Normalization”, who found it behind in convnets."
    ),
    design=(
        "A convnet of three stages on the digits, batch 32, with each of the norms after every convolution: BatchNorm, "
        "GroupNorm of four groups, LayerNorm over c h w; all have a gain and a bias for each channel. Each rate is "
        f"tried with several seeds, since their results differ by more than those of good rates do. {FIXED_SPLIT}"
    ),
    rule="Supported if the intervals of LayerNorm's held-out loss minus BatchNorm's and minus GroupNorm's are above 0.",
    variants=variants,
    measure=train_images,
    questions=questions,
    charts=charts,
    tuning=lambda budget: LRTuning(
        lrs=budget.pick(quick=(0.1, 0.3, 1.0, 3.0), full=(0.03, 0.1, 0.3, 1.0, 3.0)),
        seeds=budget.pick(quick=2, full=3),
    ),
    meaning={
        "supported": "In a convnet like this one keep each channel's statistics, or those of small groups, apart.",
        "contradicted": (
            "LayerNorm over c h w is not the worst of the three in a small convnet: that channels are mixed does not "
            "hurt by itself."
        ),
        "inconclusive": (
            "On a task this small the three cannot be told apart in all that is claimed; what is said of large "
            "convnets on large pictures is neither shown nor refuted."
        ),
    },
)
