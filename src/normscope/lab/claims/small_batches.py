"""BatchNorm needs a batch: its loss by the batch's size, next to GroupNorm's, which needs none."""

from collections.abc import Mapping

from normscope.display.chart import Chart
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings, Tuning
from normscope.lab.report.charts import by_number
from normscope.lab.runs import Runs
from normscope.lab.trials.images import train_images
from normscope.lab.verdict import BySeed, Figures, Question

BATCHES = (32, 8, 4, 2)
LARGE, SMALL = BATCHES[0], BATCHES[-1]
NORMS = ("batch", "group")
PICTURES = 1400
MARGIN = 0.05
"""Nats: on the digits about one picture in a hundred more that is wrong. Who has memory for two would pay that."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    epochs = budget.pick(quick=3, full=30)
    return {
        f"{norm} {batch}": {
            "model": {"kind": "convnet", "widths": [16, 32, 64], "norm": norm},
            "batch": batch,
            "steps": epochs * (PICTURES // batch),
            "optimiser": "sgd",
        }
        for norm in NORMS
        for batch in BATCHES
    }


def measure(settings: Settings, seed: int) -> Figures:
    """Train; the rate is told for a batch of 32, and a smaller batch takes smaller steps in proportion to its size.

    So each size of batch tries rates around those that suit it, and all have as many to choose from.
    """
    rate = settings["rate_of_large"] * settings["batch"] / LARGE
    return train_images({**settings, "rate": rate}, seed)


def questions(budget: Budget) -> list[Question]:
    def worse(runs: BySeed, norm: str) -> float:
        return float(runs[f"{norm} {SMALL}"]["loss"] - runs[f"{norm} {LARGE}"]["loss"])

    sizes = f"from batches of {LARGE} to batches of {SMALL}"
    return [
        Question(f"{sizes} BatchNorm's loss rises", lambda runs: worse(runs, "batch"), side="above", unit="nats"),
        Question(
            f"{sizes} GroupNorm's loss rises by less than {MARGIN} nats",
            lambda runs: worse(runs, "group"),
            line=MARGIN,
            side="below",
            unit="nats",
        ),
        Question(
            f"{sizes} BatchNorm's loss rises by more than GroupNorm's",
            lambda runs: worse(runs, "batch") - worse(runs, "group"),
            side="above",
            unit="nats",
        ),
    ]


def charts(runs: Runs) -> list[Chart]:
    lines = {
        label: {float(batch): f"{norm} {batch}" for batch in BATCHES}
        for label, norm in (("BatchNorm", "batch"), ("GroupNorm", "group"))
    }
    return [
        by_number("Loss on held-out pictures", "batch", "nats", runs, "loss", lines, log_x=True),
        by_number("Mistakes on held-out pictures", "batch", "share", runs, "error", lines, log_x=True),
    ]


CLAIM = Claim(
    number=15,
    name="small-batches",
    kind="trained",
    statement="BatchNorm gets worse as the batch shrinks from 32 to 2; GroupNorm does not.",
    source="Notes on normalization; Wu and He 2018, “Group Normalization”.",
    design=(
        "A convnet of three stages on the digits, with BatchNorm or GroupNorm of four groups, in batches of 32, 8, 4 "
        "and 2; all see equally many pictures, so small batches take more steps. The rate is looked for at every size "
        "of batch, around one that is in proportion to it. BatchNorm's running statistics have torch's momentum."
    ),
    rule=(
        f"Supported if, from 32 to 2, the interval of BatchNorm's rise in loss is above 0, that of GroupNorm's below "
        f"{MARGIN} nats, and that of the difference of the two above 0."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    tuning=lambda budget: Tuning(
        rates=budget.pick(quick=(0.06, 0.2, 0.6, 2.0), full=(0.02, 0.06, 0.2, 0.6, 2.0)),
        seeds=budget.pick(quick=1, full=3),
        setting="rate_of_large",
    ),
    meaning={
        "supported": (
            "Where memory allows only a few pictures at a time, take GroupNorm: it does not notice, and BatchNorm pays."
        ),
        "contradicted": (
            "On a task this small, the size of the batch by itself is no reason to leave BatchNorm for GroupNorm: look "
            "below at which part of the claim failed."
        ),
        "inconclusive": (
            "Not all of it can be told on a task this small, where small batches also take more steps, which by itself "
            "helps either norm; the answers below say which part is open."
        ),
    },
)
