"""BatchNorm with its effect on covariate shift undone by noise."""

import math
import statistics

from normscope.lab import toolkit as lab
from normscope.lab.trials.conv_stack import ConvStack, checkpoints, expected_shift, training
from normscope.lab.trials.digits import load_digits
from normscope.lab.trials.images import UNIFORM_GUESS, UNIFORM_LOSS, evaluate_digits
from normscope.lab.trials.probes import feature_moments, shift_between
from normscope.lab.trials.training_metrics import thinned

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
    theory, lines = [("theory: noise alone", expected_shift())], {"loss": list(NAMES.values())}
    title, held_out = "Shift of the features per step", "Loss on held-out images, without the noise"
    std = "standard deviations"
    return [
        lab.curves("Training loss, with the noise", "step", "nats", runs, "curve", NAMES),
        lab.curves(title, "step", std, runs, "shifts", NAMES, log_y=True, reference_lines=theory),
        lab.categories(held_out, "norm", "nats", runs, "held_out", lines, list(NAMES)),
    ]


tuning = lab.lr_grid((0.03, 0.1, 0.3, 1.0))
EXPERIMENT = lab.Experiment(variants, measure, questions, charts, tuning)
