"""LayerNorm over c h w in a convnet, next to BatchNorm and GroupNorm."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.images import small_convnet, train_images

NAMES = {"batch": "BatchNorm", "group": "GroupNorm", "layer": "LayerNorm"}


def variants(budget: lab.Budget) -> lab.Variants:
    return {norm: small_convnet(budget.pick(quick=450, full=6000), norm) for norm in NAMES}


def questions(budget: lab.Budget) -> list[lab.Question]:
    return [lab.difference(f"LayerNorm's loss is above {NAMES[norm]}'s", "layer", norm) for norm in ("batch", "group")]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    return lab.image_charts(runs, "norm", {name: norm for norm, name in NAMES.items()})


tuning = lab.lr_grid((0.1, 0.3, 1.0, 3.0), (0.03, 0.1, 0.3, 1.0, 3.0), seeds=(2, 3))
EXPERIMENT = lab.Experiment(variants, train_images, questions, charts, tuning)
