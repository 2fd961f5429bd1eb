"""ReLU² is better than ReLU and as good as GELU and SwiGLU, at equal parameters, by steps and by time."""

import time
from functools import partial

from normscope.data.batches import Batches
from normscope.lab import toolkit as lab
from normscope.lab.trials.measuring import median_ratio, times_in_turn
from normscope.lab.trials.text import build_gpt, small_gpt, train_text, training_config
from normscope.lab.trials.text_sources import load_text
from normscope.training.trainer import Trainer

REFERENCE = "relu2"
OTHERS = {"relu": "ReLU", "gelu": "GELU", "swiglu": "SwiGLU"}
MARGINS = {"relu": 0.0, "gelu": lab.TEXT_MARGIN, "swiglu": lab.TEXT_MARGIN}
EQUAL = ("steps", "time")
TIMED_STEPS = 30
"""Timed steps of each of two models."""


def variants(budget: lab.Budget) -> lab.Variants:
    steps = budget.pick(quick=230, full=3000)
    chosen = {f"{other}, equal {equal}": (other, equal) for equal in EQUAL for other in OTHERS}
    return {
        # A gated MLP has 2/3 of the hidden units by default. The time of the reference is the budget of the others.
        name: {**small_gpt(steps, activation=activation), "equal": equal}
        for name, (activation, equal) in {REFERENCE: (REFERENCE, "steps"), **chosen}.items()
    }


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Train for a number of steps, or for as many as fit into the reference's time for that number."""
    if settings["equal"] == "steps":
        return train_text(settings, seed)
    slower = relative_time(settings, seed)
    return {**train_text({**settings, "steps": round(settings["steps"] / slower)}, seed), "relative_time": slower}


def relative_time(settings: lab.Settings, seed: int) -> float:
    """The time of a step relative to the reference's; both alternate, so that other load slows both."""
    reference = {**settings, "model": {**settings["model"], "activation": REFERENCE}}
    own, other = partial(_seconds, _trainer(settings, seed)), partial(_seconds, _trainer(reference, seed))
    times = times_in_turn({"own": own, "other": other}, TIMED_STEPS)
    return median_ratio(times["own"], times["other"])


def _seconds(trainer: Trainer) -> float:
    start = time.process_time()  # CPU time, so that waiting for other processes does not count
    trainer.step()
    return time.process_time() - start


def _trainer(settings: lab.Settings, seed: int) -> Trainer:
    text = load_text(settings["text"])
    model = build_gpt(settings, text, seed)
    config = training_config({**settings, "lr": 1e-4}, TIMED_STEPS, seed)  # small enough to stay finite
    return Trainer(model, config, Batches(text.train, model.config.context, settings["batch"], seed))


def questions(budget: lab.Budget) -> list[lab.Question]:
    def excess(other: str, equal: str) -> lab.Question:
        where = "below" if other == "relu" else f"at most {lab.TEXT_MARGIN} nats above"
        text = f"at equal {equal} ReLU²'s loss is {where} {OTHERS[other]}'s"
        return lab.difference(text, REFERENCE, f"{other}, equal {equal}", threshold=MARGINS[other], side="below")

    return [excess(other, equal) for equal in EQUAL for other in OTHERS]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    others, unit = list(OTHERS.values()), "nats per byte"
    names = ["ReLU²", *others]
    lines = {f"equal {equal}": [f"{other}, equal {equal}" for other in OTHERS] for equal in EQUAL}
    pairs = {label: [(REFERENCE, variant) for variant in variants] for label, variants in lines.items()}
    every = {label: [REFERENCE, *variants] for label, variants in lines.items()}
    times = [runs.values(f"{other}, equal time", "relative_time") for other in OTHERS]
    differences = lab.difference_lines(runs, pairs, questions)
    losses, ratios = lab.mean_lines(runs, "loss", every), lab.interval_lines({"measured": [[], *times]})
    title, thresholds = "ReLU²'s loss minus the other's, paired by seed", ("threshold", list(MARGINS.values()))
    return [
        lab.Chart(title, "other", unit, differences, categories=others, y_from_zero=True, category_lines=thresholds),
        lab.Chart("Loss on held-out text", "activation", unit, losses, categories=names),
        lab.Chart("Time per step", "activation", "ratio", ratios, [("ReLU²", 1.0)], names),
    ]


# With equal time, the learning rate is that with equal steps.
tuning = lab.lr_grid((3e-3, 1e-2, 3e-2), shared=lambda name: name.replace("equal time", "equal steps"))
EXPERIMENT = lab.Experiment(variants, measure, questions, charts, tuning, equal="parameters")
