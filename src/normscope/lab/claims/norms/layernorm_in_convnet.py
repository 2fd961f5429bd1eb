"""LayerNorm over c h w in a convnet, next to BatchNorm and GroupNorm."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.images import train_images

NAMES = {"batch": "BatchNorm", "group": "GroupNorm", "layer": "LayerNorm"}


def variants(budget: lab.Budget) -> lab.Variants:
    return {
        norm: {
            "model": {"kind": "convnet", "widths": [16, 32, 64], "norm": norm},
            "batch": 32,
            "steps": budget.pick(quick=450, full=6000),
            "optimizer": "sgd",
        }
        for norm in NAMES
    }


def tuning(budget: lab.Budget) -> lab.LRTuning:
    lrs = budget.pick(quick=(0.1, 0.3, 1.0, 3.0), full=(0.03, 0.1, 0.3, 1.0, 3.0))
    return lab.LRTuning(lrs, seeds=budget.pick(quick=2, full=3))


def questions(budget: lab.Budget) -> list[lab.Question]:
    return [lab.difference(f"LayerNorm's loss is above {NAMES[norm]}'s", "layer", norm) for norm in ("batch", "group")]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    norms, names = list(NAMES), list(NAMES.values())
    by_name = {NAMES[norm]: norm for norm in NAMES}
    return [
        lab.categories("Loss on held-out images", "norm", "nats", runs, "loss", {"loss": norms}, names),
        lab.categories("Error rate on held-out images", "norm", "share", runs, "error", {"error rate": norms}, names),
        lab.curves("Training loss", "step", "nats", runs, "curve", by_name, log_y=True),
    ]


EXPERIMENT = lab.Experiment(variants, train_images, questions, charts, tuning)
