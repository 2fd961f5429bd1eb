"""BatchNorm with its effect on covariate shift undone by noise."""

import math
import statistics

from normscope.lab import toolkit as lab
from normscope.lab.trials.conv_stack import ConvStack, checkpoints, training
from normscope.lab.trials.covariate_shift import feature_moments, shift_between
from normscope.lab.trials.curves import thinned
from normscope.lab.trials.digits import FIXED_SPLIT, load_digits
from normscope.lab.trials.images import IMAGE_MARGIN, UNIFORM_GUESS, UNIFORM_LOSS, evaluate_digits
from normscope.lab.trials.noise import expected_shift

NAMES = {"no norm": "none", "BatchNorm": "batch", "BatchNorm and noise": "noisy batch"}
CHECKPOINTS, PROBE = 20, 128
LEAST = 1e-12
"""Lower bound of a shift, so that its ratio exists."""


def variants(budget: lab.Budget) -> lab.Variants:
    steps = budget.pick(quick=400, full=4000)
    return {norm: {"norm": norm, "batch": 32, "steps": steps} for norm in NAMES.values()}


def tuning(budget: lab.Budget) -> lab.LRTuning:
    return lab.LRTuning((0.03, 0.1, 0.3, 1.0), seeds=budget.pick(quick=1, full=3))


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Train; at checkpoints, measure how far one step moves the features of the same images.

    Checkpoints are summarized by their geometric mean, so that a single one at which some feature hardly varied, and
    so moved far in its own units, does not dominate.
    """
    digits, steps = load_digits(), int(settings["steps"])
    model, probe = ConvStack(settings["norm"]), digits.test_images[:PROBE]
    measured_at = checkpoints(steps, CHECKPOINTS)
    losses: list[float] = []
    shifts: list[tuple[int, float]] = []
    before = None
    run = training(model, digits, batch=settings["batch"], steps=steps, lr=settings["lr"], seed=seed)
    for step, loss in enumerate(run):
        losses.append(min(loss, 2 * UNIFORM_LOSS))
        if before is not None:
            shifts.append((step, shift_between(before, feature_moments(model, probe))))
        before = feature_moments(model, probe) if step in measured_at else None
    known = [(step, max(shift, LEAST)) for step, shift in shifts if math.isfinite(shift)]
    diverged = len(losses) < steps
    held_out = UNIFORM_GUESS if diverged else evaluate_digits(model, digits)
    return {
        # Steps after divergence count as uniform guessing.
        "loss": (sum(losses) + UNIFORM_LOSS * (steps - len(losses))) / steps,
        "curve": thinned(losses),
        "shift": statistics.geometric_mean(shift for _, shift in known) if known else LEAST,
        "shifts": known,
        "held_out": held_out.loss,
        "error": held_out.error,
        "guessing": held_out.guessing,
        "diverged": diverged,
    }


def questions(budget: lab.Budget) -> list[lab.Question]:
    shift, loss = (
        "with noise the features shift further per step than",
        "with noise the training loss, over all steps, is",
    )
    noisy = "noisy batch"
    close = f"{loss} at most {IMAGE_MARGIN} nats above BatchNorm's"
    return [
        lab.log2_ratio(f"{shift} with BatchNorm alone", noisy, "batch", "shift"),
        lab.log2_ratio(f"{shift} without a norm", noisy, "none", "shift"),
        lab.difference(close, noisy, "batch", threshold=IMAGE_MARGIN, side="below"),
        lab.difference(f"{loss} below that without a norm", noisy, "none", side="below"),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    theory, lines = [("theory: noise alone", expected_shift())], {"loss": list(NAMES.values())}
    title, held_out = "Shift of the features per step", "Loss on held-out images, without the noise"
    std = "standard deviations"
    return [
        lab.curves("Training loss, with the noise", "step", "nats", runs, "curve", NAMES),
        lab.curves(title, "step", std, runs, "shifts", NAMES, log_y=True, reference_lines=theory),
        lab.categories(held_out, "norm", "nats", runs, "held_out", lines, list(NAMES)),
    ]


CLAIM = lab.Claim(
    number=20,
    name="noise-after-batchnorm",
    kind="trained",
    statement="""Noise after BatchNorm, with a new mean and variance at every step, brings covariate shift back;
        training is still as good as with BatchNorm, and better than without a norm.""",
    source="Notes on normalization; Santurkar et al. 2018, “How Does Batch Normalization Help Optimization?”.",
    design=f"""Nine plain convolutions on the digits, by SGD without momentum, batch 32: without a norm, with
        BatchNorm, and with BatchNorm followed by noise. At every step each channel draws a mean in ±0.5 and a scale
        from 1 to 1.25; each of its values is scaled and shifted by values that scatter by 0.1 around these. Shift
        is how far one step moves the channels' means and standard deviations, before the ReLU, on the same 128
        images, in units of their standard deviation: averaged over channels, and over twenty checkpoints by the
        geometric mean. Its theory is for the noise alone, on channels of mean 0 and variance 1. The training loss
        decides, with the noise on, averaged over all steps, because the claim is about training; the loss on
        held-out images, where the noise is replaced by its mean (a scale of 1.125), is drawn but does not decide.
        {FIXED_SPLIT}""",
    rule=f"""Supported if the intervals of log2 of the ratio of shifts, with noise to with BatchNorm alone and to
        without a norm, are above 0, and the intervals of the training loss with noise are less than {IMAGE_MARGIN}
        nats above BatchNorm's, and below that without a norm.""",
    experiment=lab.Experiment(variants, measure, questions, charts, tuning),
    supported="""In this network BatchNorm does not help because it stabilizes inputs: it trains as well without
        that. Do not choose a norm by how stable it keeps the layers' inputs.""",
    contradicted="""Not all of it holds in this network: where the training loss with noise is behind, noise and the
        unstable inputs it causes do cost something, whatever else BatchNorm does.""",
    inconclusive="""Part of it is left open by these seeds, the amount of shift or its cost: the answers below say
        which. It does not settle why BatchNorm helps.""",
    remark="""Before the ReLU, BatchNorm alone fixes each channel's mean and standard deviation up to its gain and
        bias, so its small shift by this measure is no finding. The paper also measures shift by gradients, with the
        layers below updated or not; that is not repeated here. Nor is the second argument of the notes, which they
        have reversed: they say that norms which stabilize the distributions without smoothing the loss hardly
        helped. The paper (section 3.3) tried normalization by the l1, l2 and maximum norm, which does not stabilize
        the distributions, and found it to work about as well as BatchNorm, and to smooth the loss as BatchNorm
        does.""",
    withdrawn="""Its threshold was moved, from 0.1 to 0.05 nats, after a first run had shown an effect of about this
        size, and the training loss is measured with the noise on, so that the noise itself counts as worse
        training. The claim needs a threshold that is set in advance, and a loss measured without the noise.""",
    revised="a margin of 0.1 nats and “twice the shift” were in no source",
    first_verdict="inconclusive",
)
