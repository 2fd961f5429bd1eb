"""A ViT on patches and the same ViT on single pixels, at equal compute."""

from collections.abc import Mapping

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, LRTuning, Settings
from normscope.lab.report.charts import categories, curves
from normscope.lab.trials.digits import FIXED_SPLIT
from normscope.lab.trials.images import train_images
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Question
from normscope.render.chart import Chart

PATCHES = {"patches": 2, "pixels": 1}
"""The side of a patch: 16 tokens of 4 pixels, or 64 of one."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {
        name: {
            "model": {"kind": "vit", "patch": patch, "width": 32, "heads": 4, "depth": 2},
            "batch": 32,
            "flops": budget.pick(quick=6e10, full=6e11),
            "optimizer": "adamw",
            "warmup": 0.1,
        }
        for name, patch in PATCHES.items()
    }


def questions(budget: Budget) -> list[Question]:
    def excess(runs: BySeed) -> float:
        return float(runs["pixels"]["loss"] - runs["patches"]["loss"])

    text = "at equal compute the loss on pixels is above the loss on patches"
    return [Question(text, excess, side="above", unit="nats")]


def charts(runs: VariantRuns) -> list[Chart]:
    names = ["2 x 2 patches", "single pixels"]
    held_out = "on held-out pictures"
    return [
        categories(f"Loss {held_out}", "tokens", "nats", runs, "loss", {"loss": list(PATCHES)}, names),
        categories(f"Mistakes {held_out}", "tokens", "share", runs, "error", {"error": list(PATCHES)}, names),
        curves(
            "Loss while training: the same compute is fewer steps on pixels",
            "step",
            "nats",
            runs,
            "curve",
            dict(zip(names, PATCHES, strict=True)),
            log_y=True,
        ),
    ]


CLAIM = Claim(
    number=30,
    name="patches-vs-pixels",
    kind="trained",
    statement="At equal compute a ViT on patches beats the same model on single pixels.",
    source=(
        "Notes on normalization, on pictures as sequences; Dosovitskiy et al. 2020, “An Image is Worth 16x16 Words”."
    ),
    design=(
        "A ViT of two blocks of width 32 on the digits, batch 32, by AdamW: 16 tokens of 2 x 2 pixels, or 64 of one. "
        "Each takes as many steps as the same number of multiplications and additions in its matrix products allows. "
        f"{FIXED_SPLIT}"
    ),
    rule="Supported if the interval of the held-out loss on pixels minus that on patches is above 0.",
    variants=variants,
    measure=train_images,
    questions=questions,
    charts=charts,
    tuning=lambda budget: LRTuning(lrs=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2), seeds=budget.pick(quick=1, full=3)),
    equal="compute",
    meaning={
        "supported": (
            "At one amount of compute, on 8x8 pictures, patches are the better use of it: a step on single pixels "
            "costs several times as much, and what it sees more of does not make up for having fewer steps."
        ),
        "contradicted": (
            "At one amount of compute, on 8x8 pictures, single pixels are no worse: here the finer sequence makes up "
            "for its fewer steps."
        ),
        "inconclusive": (
            "At one amount of compute, on 8x8 pictures, the two cannot be told apart; patches are cheaper to run once "
            "trained."
        ),
    },
    remark=(
        "The notes say that flattening breaks the two-dimensional neighbourhood. A transformer that learns a position "
        "for every pixel can find it again; what is tested is whether it does so at the same cost. More compute might "
        "turn it: the claim is tested at one amount, and on pictures far smaller than the paper's."
    ),
    revised="a part of its design",
)
