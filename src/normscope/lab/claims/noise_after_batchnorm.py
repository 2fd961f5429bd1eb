"""BatchNorm with its effect on covariate shift undone by noise, and still as good."""

import math
from collections.abc import Mapping

from normscope.display.chart import Chart
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings, Tuning
from normscope.lab.report.charts import curves
from normscope.lab.runs import Runs
from normscope.lab.trials.curves import thinned
from normscope.lab.trials.digits import load_digits
from normscope.lab.trials.images import CHANCE
from normscope.lab.trials.shift import moments, shift_between
from normscope.lab.trials.stack import NORMS, Stack, checkpoints, training
from normscope.lab.verdict import BySeed, Figures, Question

NAMES = {"no norm": "none", "BatchNorm": "batch", "BatchNorm and noise": "noisy batch"}
MARGIN = 0.1
"""Nats, on average over training: less than a twentieth of the ln 10 that there is to learn."""
TWICE = 1.0
"""log2: a shift that is at least twice as large is clearly larger."""
LOOKS, PROBE = 20, 128


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {norm: {"norm": norm, "batch": 32, "steps": budget.pick(quick=400, full=4000)} for norm in NORMS}


def measure(settings: Settings, seed: int) -> Figures:
    """Train, and now and then measure how far a step moved what the layers give, on the same pictures."""
    digits, steps = load_digits(seed), int(settings["steps"])
    model, probe = Stack(settings["norm"]), digits.test_images[:PROBE]
    looks = checkpoints(steps, LOOKS)
    losses: list[float] = []
    shifts: list[tuple[int, float]] = []
    before = None
    run = training(model, digits, batch=settings["batch"], steps=steps, rate=settings["rate"], seed=seed)
    for step, loss in enumerate(run):
        losses.append(min(loss, 2 * CHANCE))
        if before is not None:
            shifts.append((step, shift_between(before, moments(model, probe))))
        before = moments(model, probe) if step in looks else None
    known = [shift for _, shift in shifts if math.isfinite(shift)]
    return {
        # Steps that a network did not live to see count as guessing.
        "loss": (sum(losses) + CHANCE * (steps - len(losses))) / steps,
        "curve": thinned(losses),
        "shift": sum(known) / max(1, len(known)),
        "shifts": [(step, shift) for step, shift in shifts if math.isfinite(shift)],
        "diverged": len(losses) < steps,
    }


def questions(budget: Budget) -> list[Question]:
    def more_shift(than: str, name: str) -> Question:
        def effect(runs: BySeed) -> float:
            return math.log2(max(runs["noisy batch"]["shift"], 1e-12) / max(runs[than]["shift"], 1e-12))

        text = f"with noise the features shift at least twice as far in a step as {name}"
        return Question(text, effect, line=TWICE, side="above", unit="factors of two")

    def worse(runs: BySeed, than: str) -> float:
        return float(runs["noisy batch"]["loss"] - runs[than]["loss"])

    return [
        more_shift("batch", "with BatchNorm alone"),
        more_shift("none", "without a norm"),
        Question(
            f"with noise the loss over training is at most {MARGIN} nats above BatchNorm's",
            lambda runs: worse(runs, "batch"),
            line=MARGIN,
            side="below",
            unit="nats",
        ),
        Question(
            "with noise the loss over training is below that without a norm",
            lambda runs: worse(runs, "none"),
            side="below",
            unit="nats",
        ),
    ]


def charts(runs: Runs) -> list[Chart]:
    return [
        curves("Loss while training", "step", "nats", runs, "curve", NAMES),
        curves("How far one step moves the features", "step", "standard deviations", runs, "shifts", NAMES, log_y=True),
    ]


CLAIM = Claim(
    number=20,
    name="noise-after-batchnorm",
    kind="trained",
    statement=(
        "Noise after BatchNorm, with a new mean and variance at every step, brings covariate shift back; training is "
        "still as good as with BatchNorm, and better than without a norm."
    ),
    source="Notes on normalization; Santurkar et al. 2018, “How Does Batch Normalization Help Optimization?”.",
    design=(
        "Nine plain convolutions on the digits, by SGD without momentum, batch 32: without a norm, with BatchNorm, and "
        "with BatchNorm followed by noise. At every step each feature is given a mean in ±0.5 and a scale from 1 to "
        "1.25; each of its values is multiplied by its own scale and moved by its own mean, which scatter by 0.1 about "
        "these. Shift is how far one step moves the features' means and standard deviations, before the ReLU, on the "
        "same 128 pictures, in units of their standard deviation. Training is judged by the training loss, with the "
        "noise, averaged over all steps."
    ),
    rule=(
        "Supported if the shift with noise is more than twice that of both others, its loss at most "
        f"{MARGIN} nats above BatchNorm's, and below that without a norm, all by their intervals."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    tuning=lambda budget: Tuning(rates=(0.01, 0.03, 0.1, 0.3, 1.0), seeds=budget.pick(quick=1, full=3)),
    meaning={
        "supported": (
            "BatchNorm does not owe its success to steady inputs: without these it works as well. Do not choose "
            "a norm by how steady it keeps the layers' inputs."
        ),
        "contradicted": (
            "Not all of it holds in this network: where the loss with noise is behind, unsteady inputs do cost "
            "something, next to whatever else BatchNorm does."
        ),
        "inconclusive": (
            "Part of it is left open by these seeds, how much shift there is or what it costs: the answers below say "
            "which. As it stands, it does not settle why BatchNorm helps."
        ),
    },
    remark=(
        "Before the ReLU, BatchNorm alone fixes each feature's mean and standard deviation but for its gain and bias; "
        "that it hardly shifts by this measure is no finding. The paper also measures shift by gradients, with the "
        "layers below updated or not; that is not repeated here."
    ),
)
