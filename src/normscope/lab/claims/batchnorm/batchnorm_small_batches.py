"""BatchNorm needs many images at once: its loss by micro-batch size, next to GroupNorm's, which needs one."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.images import small_convnet, train_images

SIZES = (32, 8, 4, 2)
"""Micro-batch sizes; an optimizer step always uses 32 images."""
LARGE, MIDDLE, SMALL = SIZES[0], SIZES[1], SIZES[-1]


def sizes_of(norm: str, budget: lab.Budget) -> tuple[int, ...]:
    """GroupNorm must give the same result at every size, up to rounding: the two ends are enough to check."""
    return SIZES if norm == "batch" else budget.pick(quick=(LARGE, SMALL), full=SIZES)


def variants(budget: lab.Budget) -> lab.Variants:
    return {
        f"{norm} {size}": {**small_convnet(budget.pick(quick=100, full=1300), norm), "micro_batch": size}
        for norm in ("batch", "group")
        for size in sizes_of(norm, budget)
    }


def questions(budget: lab.Budget) -> list[lab.Question]:
    def rise(runs: lab.BySeed, norm: str) -> float:
        return float(runs[f"{norm} {SMALL}"]["loss"] - runs[f"{norm} {LARGE}"]["loss"])

    def batch_rises(size: int) -> lab.Question:
        text = f"from micro-batches of {size} to {SMALL} BatchNorm's loss rises"
        return lab.difference(text, f"batch {SMALL}", f"batch {size}")

    ends = f"from micro-batches of {LARGE} to {SMALL}"
    stays = f"{ends} GroupNorm's loss rises by less than {lab.IMAGE_MARGIN} nats"
    more = f"{ends} BatchNorm's loss rises by more than GroupNorm's"
    return [
        batch_rises(LARGE),
        batch_rises(MIDDLE),
        lab.difference(stays, f"group {SMALL}", f"group {LARGE}", threshold=lab.IMAGE_MARGIN, side="below"),
        lab.Question(more, lambda runs: rise(runs, "batch") - rise(runs, "group"), unit="nats"),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    lines = {
        label: {float(size): f"{norm} {size}" for size in SIZES if f"{norm} {size}" in runs.variants}
        for label, norm in (("BatchNorm", "batch"), ("GroupNorm", "group"))
    }
    losses, errors = (lab.lines_by_number(runs, metric, lines) for metric in ("loss", "error"))
    return [
        lab.Chart("Loss on held-out images", "micro-batch size", "nats", losses, log_x=True),
        lab.Chart("Error rate on held-out images", "micro-batch size", "share", errors, log_x=True),
    ]


def shared_lr(name: str) -> str:
    """BatchNorm is tuned at every size, so that none is handicapped by a learning rate that suits another."""
    return f"group {LARGE}" if name.startswith("group") else name


tuning = lab.lr_grid((0.06, 0.2, 0.6, 2.0), (0.02, 0.06, 0.2, 0.6, 2.0), shared=shared_lr)
EXPERIMENT = lab.Experiment(variants, train_images, questions, charts, tuning)
