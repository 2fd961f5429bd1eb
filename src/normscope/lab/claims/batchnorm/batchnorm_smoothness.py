"""The loss along the gradient, with and without BatchNorm: how much it varies, how far the gradient is predictive."""

import statistics

from normscope.lab import toolkit as lab
from normscope.lab.trials.conv_stack import ConvStack, checkpoints, probe_along_gradient
from normscope.lab.trials.images import load_digits, train_steps

LR = 1 / 32
"""A quarter of the largest learning rate at which the network without a norm trains (see `batchnorm_large_lr`): four
steps are about as far as it can go."""
NAMES = {"no norm": "none", "BatchNorm": "batch"}
MEASURES = {"variation": "range of the loss", "change": "change of the gradient", "slope": "effective smoothness"}
"""The metrics of the claim and their labels."""
LEAST = 1e-12
"""Lower bound of a metric, so that its ratio exists."""


def variants(budget: lab.Budget) -> lab.Variants:
    common = {"batch": 32, "lr": LR, "steps": budget.pick(quick=400, full=4000)}
    count = budget.pick(quick=40, full=200)
    return {norm: {"norm": norm, **common, "checkpoints": count} for norm in NAMES.values()}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Train; at checkpoints, evaluate loss and gradient along the gradient of the next batch.

    Checkpoints are summarized by their geometric mean, so that one at which the loss explodes does not dominate.
    """
    digits, steps = load_digits(), int(settings["steps"])
    model, measured_at = ConvStack(settings["norm"]), checkpoints(steps, settings["checkpoints"])
    found: dict[str, list[tuple[int, float]]] = {}
    run = train_steps(model, digits, {**settings, "optimizer": "plain sgd"}, steps, seed)
    for step, _ in enumerate(run, start=1):
        if step - 1 not in measured_at:
            continue
        probes = probe_along_gradient(model, *digits.batch(step, settings["batch"], seed), settings["lr"])
        losses, changes, slopes = zip(*probes, strict=True)
        for name, value in {
            "loss_low": min(losses),
            "loss": sum(losses) / len(losses),
            "loss_high": max(losses),
            "variation": max(losses) - min(losses),
            "change_low": min(changes),
            "change_high": max(changes),
            "change": sum(changes) / len(changes),
            "slope": max(slopes),
        }.items():
            found.setdefault(name, []).append((step, max(value, LEAST)))
    return {**found, **{f"usual_{name}": statistics.geometric_mean(y for _, y in found[name]) for name in MEASURES}}


def questions(budget: lab.Budget) -> list[lab.Question]:
    texts = {
        "variation": "the loss varies less along the gradient",
        "change": "the gradient changes less along the way",
        "slope": "its largest change per unit of distance is smaller (effective smoothness)",
    }
    return [
        lab.log2_ratio(f"with BatchNorm {text}", "batch", "none", f"usual_{metric}", side="below")
        for metric, text in texts.items()
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    def chart(title: str, y_label: str, metric: str) -> lab.Chart:
        lines = []
        for (label, norm), color in zip(NAMES.items(), lab.COLORS, strict=False):
            ends = zip(runs.curve(norm, f"{metric}_low"), runs.curve(norm, f"{metric}_high"), strict=True)
            band = [(x, low, high) for (x, low), (_, high) in ends]
            meaning = "minimum to maximum along the gradient, each averaged over seeds"
            lines.append(lab.ChartLine(label, runs.curve(norm, metric), color, interval=band, interval_label=meaning))
        return lab.Chart(title, "step", y_label, lines, log_y=True)

    smoothness, slopes = "Effective smoothness: smaller is smoother", lab.curves(runs, "slope", NAMES)
    return [
        chart("Loss, from half a step to four along the gradient", "nats", "loss"),
        chart("Change of the gradient along the way", "l2 distance", "change"),
        lab.Chart(smoothness, "step", "change / distance", slopes, log_y=True),
        _ratios(runs),
    ]


def _ratios(runs: lab.VariantRuns) -> lab.Chart:
    """BatchNorm's metrics divided by those without a norm, at each checkpoint: when it becomes the smoother one."""
    lines: list[lab.ChartLine] = []
    rougher: set[int] = set()
    for (metric, label), color in zip(MEASURES.items(), lab.COLORS, strict=False):
        by_step: dict[int, list[float]] = {}
        for seed in runs.by_seed():
            for (step, with_norm), (_, without) in zip(seed["batch"][metric], seed["none"][metric], strict=False):
                by_step.setdefault(step, []).append(with_norm / without)
        means = [(step, statistics.geometric_mean(ratios)) for step, ratios in by_step.items()]
        rougher |= {step for step, ratio in means if ratio >= 1}
        band = [(step, min(ratios), max(ratios)) for step, ratios in by_step.items()]
        lines.append(lab.ChartLine(label, means, color, interval=band, interval_label=lab.OF_SEEDS))
    smoother = [step for step, _ in lines[0].points if step not in rougher]
    when = f"first at step {smoother[0]:g}" if smoother else "at no checkpoint"
    title = f"BatchNorm divided by no norm: smoother by all three {when}"
    return lab.Chart(title, "step", "ratio, below 1 smoother", lines, reference_lines=[("equal", 1.0)], log_y=True)


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
