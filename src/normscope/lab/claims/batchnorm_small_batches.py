"""BatchNorm needs many pictures at once: its loss by how many there are, next to GroupNorm's, which needs one."""

from collections.abc import Mapping

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, LRTuning, Settings
from normscope.lab.report.charts import by_number
from normscope.lab.trials.digits import FIXED_SPLIT
from normscope.lab.trials.images import IMAGE_MARGIN, train_images
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Question
from normscope.render.chart import Chart

SIZES = (32, 8, 4, 2)
"""How many pictures go through the network at once; a step of the optimiser always sees as many as the first."""
LARGE, MIDDLE, SMALL = SIZES[0], SIZES[1], SIZES[-1]


def sizes_of(norm: str, budget: Budget) -> tuple[int, ...]:
    """GroupNorm must give the same at every size, up to rounding: the ends are enough to see that it does."""
    return SIZES if norm == "batch" else budget.pick(quick=(LARGE, SMALL), full=SIZES)


def variants(budget: Budget) -> Mapping[str, Settings]:
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


def tuning(budget: Budget) -> LRTuning:
    """BatchNorm looks for its rate at every size, so that none suffers from a rate that suits another."""
    return LRTuning(
        lrs=budget.pick(quick=(0.06, 0.2, 0.6, 2.0), full=(0.02, 0.06, 0.2, 0.6, 2.0)),
        seeds=budget.pick(quick=1, full=3),
        shared={f"group {size}": f"group {LARGE}" for size in sizes_of("group", budget)[1:]},
    )


def questions(budget: Budget) -> list[Question]:
    def rise(runs: BySeed, norm: str, size: int) -> float:
        return float(runs[f"{norm} {SMALL}"]["loss"] - runs[f"{norm} {size}"]["loss"])

    def batch_rises(size: int) -> Question:
        text = f"from {size} pictures at once to {SMALL} BatchNorm's loss rises"
        return Question(text, lambda runs: rise(runs, "batch", size), side="above", unit="nats")

    ends = f"from {LARGE} pictures at once to {SMALL}"
    return [
        batch_rises(LARGE),
        batch_rises(MIDDLE),
        Question(
            f"{ends} GroupNorm's loss rises by less than {IMAGE_MARGIN} nats",
            lambda runs: rise(runs, "group", LARGE),
            threshold=IMAGE_MARGIN,
            side="below",
            unit="nats",
        ),
        Question(
            f"{ends} BatchNorm's loss rises by more than GroupNorm's",
            lambda runs: rise(runs, "batch", LARGE) - rise(runs, "group", LARGE),
            side="above",
            unit="nats",
        ),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    lines = {
        label: {float(size): f"{norm} {size}" for size in SIZES if f"{norm} {size}" in runs.variants}
        for label, norm in (("BatchNorm", "batch"), ("GroupNorm", "group"))
    }
    held_out, axis = "on held-out pictures", "pictures at once"
    return [
        by_number(f"Loss {held_out}", axis, "nats", runs, "loss", lines, log_x=True),
        by_number(f"Mistakes {held_out}", axis, "share", runs, "error", lines, log_x=True),
    ]


CLAIM = Claim(
    number=15,
    name="batchnorm-small-batches",
    kind="trained",
    statement="BatchNorm gets worse as the batch shrinks from 32 to 2; GroupNorm does not.",
    source="Notes on normalization; Wu and He 2018, “Group Normalization”.",
    design=(
        "A convnet of three stages on the digits, with BatchNorm or GroupNorm of four groups. A step of SGD always "
        "sees 32 pictures; what shrinks is the batch that goes through the network at once, from 32 to 8, 4 and 2, and "
        "the gradients of its parts are added up, as one does where memory is short. So steps and pictures are the "
        "same for all, and only the norm's batch differs. BatchNorm's rate is looked for at each size; GroupNorm's at "
        "32, since by theory it gives the same at every size up to rounding, for which the quick budget tries the ends "
        f"only. BatchNorm's running statistics have torch's momentum and move with every part. {FIXED_SPLIT}"
    ),
    rule=(
        f"Supported if the intervals of BatchNorm's rise in loss, from {LARGE} to {SMALL} and from {MIDDLE} to "
        f"{SMALL}, are above 0, that of GroupNorm's from {LARGE} to {SMALL} is below {IMAGE_MARGIN} nats, and that of "
        "BatchNorm's rise minus GroupNorm's is above 0."
    ),
    variants=variants,
    measure=train_images,
    questions=questions,
    charts=charts,
    tuning=tuning,
    meaning={
        "supported": (
            "Where memory allows only two pictures at a time, adding up gradients does not save BatchNorm, which still "
            "takes its statistics from two. GroupNorm does not notice; which of the two is then ahead, the charts show."
        ),
        "contradicted": (
            "On a task this small, few pictures at a time are by themselves no reason to leave BatchNorm for "
            "GroupNorm: look below at which part of the claim failed."
        ),
        "inconclusive": (
            "Not all of it can be told from chance on a task this small; the answers below say which part is open."
        ),
    },
    remark=(
        "Who shrinks the batch without adding up gradients also takes more and noisier steps, which helps or harms "
        "either norm. That is another question, and is kept out of this one."
    ),
    revised="with small batches came more steps",
)
