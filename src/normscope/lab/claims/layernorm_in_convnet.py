"""LayerNorm over c h w in a convnet, next to BatchNorm and GroupNorm."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.digits import FIXED_SPLIT
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


CLAIM = lab.Claim(
    number=16,
    name="layernorm-in-convnet",
    kind="trained",
    statement="In a convnet, LayerNorm over c h w is worse than BatchNorm and than GroupNorm.",
    source="""Notes on normalization; Wu and He 2018, “Group Normalization”; Ba, Kiros and Hinton 2016, “Layer
        Normalization”, who found it behind in convnets.""",
    design=f"""A convnet of three stages on the digits, batch 32, with one of the norms after every convolution:
        BatchNorm, GroupNorm of four groups, LayerNorm over c h w; all have a gain and a bias per channel. Each
        learning rate is tried with several seeds, because seed noise exceeds the differences between good learning
        rates. {FIXED_SPLIT}""",
    rule="Supported if the intervals of LayerNorm's held-out loss minus BatchNorm's and minus GroupNorm's are above 0.",
    experiment=lab.Experiment(variants, train_images, questions, charts, tuning),
    supported="In a convnet like this one, use separate statistics per channel or per small group of channels.",
    contradicted="""LayerNorm over c h w is not the worst of the three in a small convnet: mixing channels does not
        hurt in itself.""",
    inconclusive="""On a task this small the claimed differences cannot all be resolved; what is said of large
        convnets on large images is neither shown nor refuted.""",
)
