"""A ViT on patches and the same ViT on single pixels, at equal compute."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.images import train_images

PATCHES = {"patches": 2, "pixels": 1}
"""The side of a patch: 16 tokens of 4 pixels, or 64 of one."""


def variants(budget: lab.Budget) -> lab.Variants:
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


def questions(budget: lab.Budget) -> list[lab.Question]:
    return [lab.difference("at equal compute the loss on pixels is above the loss on patches", "pixels", "patches")]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    named = {"2 x 2 patches": "patches", "single pixels": "pixels"}
    return lab.image_charts(runs, "tokens", named, "Training loss: equal compute means fewer steps on pixels")


tuning = lab.lr_grid((3e-4, 1e-3, 3e-3, 1e-2, 3e-2))
EXPERIMENT = lab.Experiment(variants, train_images, questions, charts, tuning, equal="compute")
