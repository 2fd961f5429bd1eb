"""A ViT on patches and the same ViT on single pixels, at equal compute."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.digits import FIXED_SPLIT
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


def tuning(budget: lab.Budget) -> lab.LRTuning:
    return lab.LRTuning((3e-4, 1e-3, 3e-3, 1e-2, 3e-2), seeds=budget.pick(quick=1, full=3))


def questions(budget: lab.Budget) -> list[lab.Question]:
    return [lab.difference("at equal compute the loss on pixels is above the loss on patches", "pixels", "patches")]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    variants, names = list(PATCHES), ["2 x 2 patches", "single pixels"]
    by_name = dict(zip(names, PATCHES, strict=True))
    title = "Training loss: equal compute means fewer steps on pixels"
    lines, errors = {"loss": variants}, {"error rate": variants}
    return [
        lab.categories("Loss on held-out images", "tokens", "nats", runs, "loss", lines, names),
        lab.categories("Error rate on held-out images", "tokens", "share", runs, "error", errors, names),
        lab.curves(title, "step", "nats", runs, "curve", by_name, log_y=True),
    ]


CLAIM = lab.Claim(
    number=30,
    name="patches-vs-pixels",
    kind="trained",
    statement="At equal compute a ViT on patches beats the same model on single pixels.",
    source="Notes on normalization, on images as sequences; Dosovitskiy et al. 2020, “An Image is Worth 16x16 Words”.",
    design=f"""A ViT of two blocks of width 32 on the digits, batch 32, by AdamW: 16 tokens of 2 x 2 pixels, or 64
        of one pixel. Each takes as many steps as the same number of FLOPs in its matrix products allows.
        {FIXED_SPLIT}""",
    rule="Supported if the interval of the held-out loss on pixels minus that on patches is above 0.",
    experiment=lab.Experiment(variants, train_images, questions, charts, tuning, equal="compute"),
    supported="""At one compute budget, on 8x8 images, patches use it better: a step on single pixels costs several
        times as much, and its finer input does not compensate for fewer steps.""",
    contradicted="""At one compute budget, on 8x8 images, single pixels are no worse: here the finer sequence
        compensates for fewer steps.""",
    inconclusive="""At one compute budget, on 8x8 images, the two cannot be distinguished; patches are cheaper to
        run once trained.""",
    remark="""The notes say that flattening destroys the two-dimensional neighborhood. A transformer that learns a
        position for every pixel can recover it; what is tested is whether it does so at the same cost. More compute
        might change the outcome: the claim is tested at one budget, and on images far smaller than the paper's.""",
    revised="part of its design",
)
