"""ReLU² is better than ReLU and as good as GELU and SwiGLU, at equal parameters, by steps and by time."""

import statistics
import time
from collections.abc import Mapping

from normscope.data.batches import Batches
from normscope.lab.budget import Budget, get_budget
from normscope.lab.claim import Claim, LRTuning, Settings
from normscope.lab.report.charts import categories, differences, interval_dots
from normscope.lab.trials.text import SMALL_GPT, TEXT_MARGIN, build_gpt, train_text, training_config
from normscope.lab.trials.text_sources import load_text
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import COLORS, Chart
from normscope.training.trainer import Trainer

REFERENCE = "relu2"
OTHERS = {"relu": "ReLU", "gelu": "GELU", "swiglu": "SwiGLU"}
EQUAL = ("steps", "time")
TURNS = 30
"""Steps that are timed of each of two models."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    def settings(activation: str, equal: str) -> Settings:
        model = {**SMALL_GPT["model"], "activation": activation}  # a gated MLP has 2/3 of the hidden units by default
        return {**SMALL_GPT, "model": model, "steps": budget.pick(quick=230, full=3000), "equal": equal}

    return {
        REFERENCE: settings(REFERENCE, "steps"),  # whose time is what the others get
        **{f"{other}, equal {equal}": settings(other, equal) for equal in EQUAL for other in OTHERS},
    }


def measure(settings: Settings, seed: int) -> Metrics:
    """Train for a number of steps, or for as many as fit into the time that the reference needs for that number."""
    if settings["equal"] == "steps":
        return train_text(settings, seed)
    slower = relative_time(settings, seed)
    return {**train_text({**settings, "steps": round(settings["steps"] / slower)}, seed), "relative_time": slower}


def relative_time(settings: Settings, seed: int) -> float:
    """How long a step takes, as a multiple of the reference's: both take turns, so that what else runs slows both."""
    reference = {**settings, "model": {**settings["model"], "activation": REFERENCE}}
    own, other = _trainer(settings, seed), _trainer(reference, seed)
    ratios = []
    for turn in range(TURNS):
        if turn % 2:  # so that neither is always the one who goes first
            against = _seconds(other)
            ratios.append(_seconds(own) / against)
        else:
            ratios.append(_seconds(own) / _seconds(other))
    # Steps side by side find the machine in the same state, and a turn in which it changes is only one of many.
    return statistics.median(ratios)


def _seconds(trainer: Trainer) -> float:
    start = time.process_time()  # the processor's, so that waiting for others does not count
    trainer.step()
    return time.process_time() - start


def _trainer(settings: Settings, seed: int) -> Trainer:
    text = load_text(settings["text"])
    model = build_gpt(settings, text, seed)
    # As slow as to stay finite: it is only about time.
    config = training_config({**settings, "lr": 1e-4}, TURNS, seed)
    return Trainer(model, config, Batches(text.train, model.config.context, settings["batch"], seed))


def questions(budget: Budget) -> list[Question]:
    def excess(other: str, equal: str) -> Question:
        def effect(runs: BySeed) -> float:
            return float(runs[REFERENCE]["loss"] - runs[f"{other}, equal {equal}"]["loss"])

        threshold = 0.0 if other == "relu" else TEXT_MARGIN
        where = "below" if other == "relu" else f"at most {TEXT_MARGIN} nats above"
        text = f"at equal {equal} ReLU²'s loss is {where} {OTHERS[other]}'s"
        return Question(text, effect, threshold, "below", unit="nats")

    return [excess(other, equal) for equal in EQUAL for other in OTHERS]


def charts(runs: VariantRuns) -> list[Chart]:
    names = ["ReLU²", *OTHERS.values()]
    lines = {f"equal {equal}": [f"{other}, equal {equal}" for other in OTHERS] for equal in EQUAL}
    pairs = {label: [(REFERENCE, variant) for variant in variants] for label, variants in lines.items()}
    times = [runs.interval(f"{other}, equal time", "relative_time") for other in OTHERS]
    relative = interval_dots("measured", list(enumerate(times, start=1)), COLORS[0])
    behind = ("the line", [0.0 if other == "relu" else TEXT_MARGIN for other in OTHERS])
    every = {label: [REFERENCE, *variants] for label, variants in lines.items()}
    return [
        differences(
            "ReLU²'s loss minus the other's, seed by seed",
            "the other",
            "nats a byte",
            runs,
            "loss",
            pairs,
            list(OTHERS.values()),
            asked=questions(get_budget("quick")),
            own_levels=behind,
        ),
        categories("Loss on held-out text", "activation", "nats a byte", runs, "loss", every, names),
        Chart(
            "Time of a step", "activation", "multiple", [relative], reference_lines=[("ReLU²", 1.0)], categories=names
        ),
    ]


CLAIM = Claim(
    number=26,
    name="relu-squared",
    kind="trained",
    statement=(
        "At equal parameters ReLU² is better than ReLU and as good as GELU and SwiGLU, after as many steps and after "
        "as much time."
    ),
    source=(
        "Notes on residuals, which say that ReLU² expresses more than ReLU and is quicker than what needs an "
        "exponential; So et al. 2021, “Primer: Searching for Efficient Transformers for Language Modeling”."
    ),
    design=(
        "A GPT of two blocks on the text with each activation; SwiGLU's third matrix is paid for by two thirds of the "
        "hidden units. For equal time, every run first takes some steps in turns with ReLU² and then as many steps as "
        "fit into ReLU²'s time, at the learning rate that was best at equal steps."
    ),
    rule=(
        "Supported if, both at equal steps and at equal time, the interval of ReLU²'s loss minus the other's is below "
        f"0 for ReLU, and below {TEXT_MARGIN} nats for GELU and SwiGLU."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    tuning=lambda budget: LRTuning(
        lrs=(3e-3, 1e-2, 3e-2),
        seeds=budget.pick(quick=1, full=3),
        shared={f"{other}, equal time": f"{other}, equal steps" for other in OTHERS},
    ),
    equal="parameters",
    meaning={
        "supported": (
            "At this size ReLU² is a good choice: one matrix less to write than SwiGLU, no exponential, and no loss "
            "that would be noticed."
        ),
        "contradicted": (
            "A part of it does not hold in a model of this size; the table says against which of the others, and "
            "whether by steps or by time."
        ),
        "inconclusive": "Part of it cannot be told from chance; the table says which, the first chart who is ahead.",
    },
    remark=(
        "How long a step takes depends on the machine and on the kernels that it has, so the part on equal time is "
        "true of the machine that ran it. It is the median of the ratios of neighbouring steps, timed while other runs "
        "use the other cores; taken again it differs by a hundredth or two, and by as much the number of steps."
    ),
    revised="a part of its design",
)
