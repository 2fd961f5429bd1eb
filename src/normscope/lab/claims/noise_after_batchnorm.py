"""BatchNorm with its effect on covariate shift undone by noise, and still as good."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, LRTuning, Settings
from normscope.lab.report.charts import categories, curves
from normscope.lab.trials.conv_stack import ConvStack, checkpoints, training
from normscope.lab.trials.covariate_shift import feature_moments, shift_between
from normscope.lab.trials.curves import thinned
from normscope.lab.trials.digits import FIXED_SPLIT, load_digits
from normscope.lab.trials.images import IMAGE_MARGIN, UNIFORM_GUESS, UNIFORM_LOSS, evaluate_digits
from normscope.lab.trials.noise import expected_shift
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import LOG2_RATIO, BySeed, Metrics, Question
from normscope.render.chart import Chart

NAMES = {"no norm": "none", "BatchNorm": "batch", "BatchNorm and noise": "noisy batch"}
LOOKS, PROBE = 20, 128
LEAST = 1e-12
"""What counts as a shift of nothing: a ratio cannot be taken to zero."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    steps = budget.pick(quick=400, full=4000)
    return {norm: {"norm": norm, "batch": 32, "steps": steps} for norm in NAMES.values()}


def measure(settings: Settings, seed: int) -> Metrics:
    """Train, and now and then measure how far a step moved what the layers give, on the same pictures.

    What all looks have in common is their geometric mean: a single look at which some feature hardly varied, and so
    moved far by its own measure, does not decide it.
    """
    digits, steps = load_digits(), int(settings["steps"])
    model, probe = ConvStack(settings["norm"]), digits.test_images[:PROBE]
    looks = checkpoints(steps, LOOKS)
    losses: list[float] = []
    shifts: list[tuple[int, float]] = []
    before = None
    run = training(model, digits, batch=settings["batch"], steps=steps, lr=settings["lr"], seed=seed)
    for step, loss in enumerate(run):
        losses.append(min(loss, 2 * UNIFORM_LOSS))
        if before is not None:
            shifts.append((step, shift_between(before, feature_moments(model, probe))))
        before = feature_moments(model, probe) if step in looks else None
    known = [(look, max(shift, LEAST)) for look, shift in shifts if math.isfinite(shift)]
    diverged = len(losses) < steps
    held_out = UNIFORM_GUESS if diverged else evaluate_digits(model, digits)
    return {
        # Steps that a network did not live to see count as guessing.
        "loss": (sum(losses) + UNIFORM_LOSS * (steps - len(losses))) / steps,
        "curve": thinned(losses),
        "shift": statistics.geometric_mean(shift for _, shift in known) if known else LEAST,
        "shifts": known,
        "held_out": held_out.loss,
        "error": held_out.error,
        "guessing": held_out.guessing,
        "diverged": diverged,
    }


def questions(budget: Budget) -> list[Question]:
    def more_shift(than: str, name: str) -> Question:
        def effect(runs: BySeed) -> float:
            return math.log2(runs["noisy batch"]["shift"] / runs[than]["shift"])

        return Question(f"with noise the features shift further in a step than {name}", effect, unit=LOG2_RATIO)

    def worse(runs: BySeed, than: str) -> float:
        return float(runs["noisy batch"]["loss"] - runs[than]["loss"])

    return [
        more_shift("batch", "with BatchNorm alone"),
        more_shift("none", "without a norm"),
        Question(
            f"with noise the training loss, over all steps, is at most {IMAGE_MARGIN} nats above BatchNorm's",
            lambda runs: worse(runs, "batch"),
            threshold=IMAGE_MARGIN,
            side="below",
            unit="nats",
        ),
        Question(
            "with noise the training loss, over all steps, is below that without a norm",
            lambda runs: worse(runs, "none"),
            side="below",
            unit="nats",
        ),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    title, unit = "How far one step moves the features", "standard deviations"
    shifts = curves(title, "step", unit, runs, "shifts", NAMES, log_y=True)
    held_out = {"loss": list(NAMES.values())}
    return [
        curves("Training loss, with the noise", "step", "nats", runs, "curve", NAMES),
        replace(shifts, reference_lines=[("theory: the noise alone", expected_shift())]),
        categories(
            "Loss on held-out pictures, without the noise", "norm", "nats", runs, "held_out", held_out, list(NAMES)
        ),
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
        "with BatchNorm followed by noise. At every step each channel is given a mean in ±0.5 and a scale from 1 to "
        "1.25; each of its values is multiplied by its own scale and moved by its own mean, which scatter by 0.1 about "
        "these. Shift is how far one step moves the channels' means and standard deviations, before the ReLU, on the "
        "same 128 pictures, in units of their standard deviation: the mean over channels, and of twenty looks the "
        "geometric mean. Its theory is of the noise alone, on channels of mean 0 and variance 1. Training is judged by "
        "the training loss, with the noise on, averaged over all steps, since the claim is about training; the loss on "
        "held-out pictures, where the noise is replaced by its mean (a scale of 1.125), is drawn but does not decide. "
        f"{FIXED_SPLIT}"
    ),
    rule=(
        "Supported if the intervals of log2 of the ratio, the shift with noise to that with BatchNorm alone and to "
        "that without a norm, are above 0, and those of the training loss with noise are less than "
        f"{IMAGE_MARGIN} nats above BatchNorm's, and below that without a norm."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    tuning=lambda budget: LRTuning(lrs=(0.03, 0.1, 0.3, 1.0), seeds=budget.pick(quick=1, full=3)),
    meaning={
        "supported": (
            "In this network BatchNorm does not owe what it gives to steady inputs: without these it trains as well. "
            "Do not choose a norm by how steady it keeps the layers' inputs."
        ),
        "contradicted": (
            "Not all of it holds in this network: where the training loss with noise is behind, noise and the unsteady "
            "inputs that it makes do cost something, next to whatever else BatchNorm does."
        ),
        "inconclusive": (
            "Part of it is left open by these seeds, how much shift there is or what it costs: the answers below say "
            "which. As it stands, it does not settle why BatchNorm helps."
        ),
    },
    remark=(
        "Before the ReLU, BatchNorm alone fixes each channel's mean and standard deviation but for its gain and bias; "
        "that it hardly shifts by this measure is no finding. The paper also measures shift by gradients, with the "
        "layers below updated or not; that is not repeated here. Nor is the second argument that the notes give, and "
        "they have it the wrong way round: they say that norms which steady the distributions without smoothing the "
        "loss hardly helped. The paper (section 3.3) tried norms by the l1, the l2 and the largest value, which do "
        "not steady the distributions, and found them to do about as well as BatchNorm, and to smooth as it does."
    ),
    withdrawn=(
        "Its threshold was moved, from 0.1 to 0.05 nats, after a first run had shown an effect of about this size, "
        "and the training loss is measured with the noise on, so that the noise itself is counted as worse training. "
        "The claim needs a threshold that is set in advance, and a loss measured without the noise."
    ),
    revised="a margin of 0.1 nats and “twice the shift” were in no source",
    first_verdict="inconclusive",
)
