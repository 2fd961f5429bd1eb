"""BatchNorm needs many images at once: its loss by micro-batch size, next to GroupNorm's, which needs one."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.digits import FIXED_SPLIT
from normscope.lab.trials.images import IMAGE_MARGIN, train_images

SIZES = (32, 8, 4, 2)
"""Micro-batch sizes; an optimizer step always uses the first."""
LARGE, MIDDLE, SMALL = SIZES[0], SIZES[1], SIZES[-1]


def sizes_of(norm: str, budget: lab.Budget) -> tuple[int, ...]:
    """GroupNorm must give the same result at every size, up to rounding: the two ends are enough to check."""
    return SIZES if norm == "batch" else budget.pick(quick=(LARGE, SMALL), full=SIZES)


def variants(budget: lab.Budget) -> lab.Variants:
    return {
        f"{norm} {size}": {
            "model": {"kind": "convnet", "widths": [16, 32, 64], "norm": norm},
            "batch": LARGE,
            "micro_batch": size,
            "steps": budget.pick(quick=100, full=1300),
            "optimizer": "sgd",
        }
        for norm in ("batch", "group")
        for size in sizes_of(norm, budget)
    }


def tuning(budget: lab.Budget) -> lab.LRTuning:
    """Tune BatchNorm at every size, so that none is handicapped by a learning rate that suits another."""
    return lab.LRTuning(
        lrs=budget.pick(quick=(0.06, 0.2, 0.6, 2.0), full=(0.02, 0.06, 0.2, 0.6, 2.0)),
        seeds=budget.pick(quick=1, full=3),
        shared={f"group {size}": f"group {LARGE}" for size in sizes_of("group", budget)[1:]},
    )


def questions(budget: lab.Budget) -> list[lab.Question]:
    def rise(runs: lab.BySeed, norm: str) -> float:
        return float(runs[f"{norm} {SMALL}"]["loss"] - runs[f"{norm} {LARGE}"]["loss"])

    def batch_rises(size: int) -> lab.Question:
        text = f"from micro-batches of {size} to {SMALL} BatchNorm's loss rises"
        return lab.difference(text, f"batch {SMALL}", f"batch {size}")

    ends = f"from micro-batches of {LARGE} to {SMALL}"
    stays = f"{ends} GroupNorm's loss rises by less than {IMAGE_MARGIN} nats"
    more = f"{ends} BatchNorm's loss rises by more than GroupNorm's"
    return [
        batch_rises(LARGE),
        batch_rises(MIDDLE),
        lab.difference(stays, f"group {SMALL}", f"group {LARGE}", threshold=IMAGE_MARGIN, side="below"),
        lab.Question(more, lambda runs: rise(runs, "batch") - rise(runs, "group"), unit="nats"),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    lines = {
        label: {float(size): f"{norm} {size}" for size in SIZES if f"{norm} {size}" in runs.variants}
        for label, norm in (("BatchNorm", "batch"), ("GroupNorm", "group"))
    }
    held_out, axis = "on held-out images", "micro-batch size"
    return [
        lab.by_number(f"Loss {held_out}", axis, "nats", runs, "loss", lines, log_x=True),
        lab.by_number(f"Error rate {held_out}", axis, "share", runs, "error", lines, log_x=True),
    ]


CLAIM = lab.Claim(
    number=15,
    name="batchnorm-small-batches",
    kind="trained",
    statement="BatchNorm gets worse as the batch shrinks from 32 to 2; GroupNorm does not.",
    source="Notes on normalization; Wu and He 2018, “Group Normalization”.",
    design=f"""A convnet of three stages on the digits, with BatchNorm or GroupNorm of four groups. A step of SGD
        always uses 32 images; what shrinks is the micro-batch, from 32 to 8, 4 and 2, with gradient accumulation.
        So the steps and images are the same for all, and only the norm's batch differs. BatchNorm's learning rate
        is tuned at each size; GroupNorm's at 32, because in theory it gives the same result at every size up to
        rounding, for which the quick budget runs the two ends only. BatchNorm's running statistics have torch's
        momentum and are updated with every micro-batch. {FIXED_SPLIT}""",
    rule=f"""Supported if the intervals of BatchNorm's rise in loss, from {LARGE} to {SMALL} and from {MIDDLE} to
        {SMALL}, are above 0, that of GroupNorm's from {LARGE} to {SMALL} is below {IMAGE_MARGIN} nats, and that of
        BatchNorm's rise minus GroupNorm's is above 0.""",
    experiment=lab.Experiment(variants, train_images, questions, charts, tuning),
    supported="""If memory allows only two images at a time, gradient accumulation does not help BatchNorm, which
        still takes its statistics from two. GroupNorm is unaffected; the charts show which of the two is then
        better.""",
    contradicted="""On a task this small, small micro-batches alone are no reason to replace BatchNorm by GroupNorm:
        see below which part of the claim failed.""",
    inconclusive="Not all of it can be distinguished from seed noise on a task this small; see which part below.",
    remark="""Shrinking the batch without gradient accumulation also means more and noisier steps, which helps or
        harms either norm. That is a different question, and is excluded here.""",
    revised="small batches came with more steps",
)
