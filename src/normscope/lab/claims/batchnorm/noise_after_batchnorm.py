"""BatchNorm with its effect on covariate shift undone by noise."""

import math
import statistics

from normscope.lab import toolkit as lab
from normscope.lab.trials.conv_stack import ConvStack, checkpoints, expected_shift, feature_moments, shift_between
from normscope.lab.trials.images import UNIFORM_GUESS, UNIFORM_LOSS, evaluate_digits, load_digits, train_steps
from normscope.lab.trials.measuring import thinned

NAMES = {"no norm": "none", "BatchNorm": "batch", "BatchNorm and noise": "noisy batch"}
CHECKPOINTS, PROBE = 20, 128
LEAST = 1e-12
"""Lower bound of a shift, so that its ratio exists."""


def variants(budget: lab.Budget) -> lab.Variants:
    steps = budget.pick(quick=400, full=4000)
    return {norm: {"norm": norm, "batch": 32, "steps": steps} for norm in NAMES.values()}


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
    for step, loss in enumerate(train_steps(model, digits, {**settings, "optimizer": "plain sgd"}, steps, seed)):
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
    noisy, shift = "noisy batch", "with noise the features shift further per step than"
    loss = "with noise the training loss, over all steps, is"
    close = f"{loss} at most {lab.IMAGE_MARGIN} nats above BatchNorm's"
    return [
        lab.log2_ratio(f"{shift} with BatchNorm alone", noisy, "batch", "shift"),
        lab.log2_ratio(f"{shift} without a norm", noisy, "none", "shift"),
        lab.difference(close, noisy, "batch", threshold=lab.IMAGE_MARGIN, side="below"),
        lab.difference(f"{loss} below that without a norm", noisy, "none", side="below"),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    losses, shifts = lab.curves(runs, "curve", NAMES), lab.curves(runs, "shifts", NAMES)
    held_out = lab.mean_lines(runs, "held_out", {"loss": list(NAMES.values())})
    theory, title = [("theory: noise alone", expected_shift())], "Shift of the features per step"
    return [
        lab.Chart("Training loss, with the noise", "step", "nats", losses),
        lab.Chart(title, "step", "standard deviations", shifts, theory, log_y=True),
        lab.Chart("Loss on held-out images, without the noise", "norm", "nats", held_out, categories=list(NAMES)),
    ]


tuning = lab.lr_grid((0.03, 0.1, 0.3, 1.0))
EXPERIMENT = lab.Experiment(variants, measure, questions, charts, tuning)
