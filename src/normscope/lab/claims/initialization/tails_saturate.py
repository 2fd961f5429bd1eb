"""Do the tails of a normal saturate sigmoid and tanh units at initialization, or does the scale of all weights?"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.blocks.initialization import Initialization
from normscope.blocks.linear import Linear
from normscope.lab import toolkit as lab
from normscope.lab.trials.images import CLASSES, UNIFORM_GUESS, UNIFORM_LOSS, evaluate_digits, load_digits, train_steps
from normscope.lab.trials.measuring import thinned

UNITS: Mapping[str, tuple[type[nn.Module], float, float]] = {
    "tanh": (nn.Tanh, 5 / 3, math.atanh(math.sqrt(0.95))),
    "sigmoid": (nn.Sigmoid, 4.0, 2 * math.atanh(math.sqrt(0.95))),
}
"""A unit, its recommended gain (std of a weight times sqrt(d_in)), and the input beyond which it counts as saturated:
its derivative is below a twentieth of its maximum."""
NORMALS: Mapping[str, Mapping[str, Any]] = {
    "full": {"truncate_at": None},
    "truncated": {"truncate_at": 3.0},
    "truncated, same std": {"truncate_at": 3.0, "corrected": True},
}
"""Truncation also shrinks the standard deviation, by 1.3% at 3 sigma. Only the third, which is rescaled by as much,
differs from the first by its tails alone."""
SAME_STD = "truncated, same std"
GAINS = (0.5, 1.0, 5 / 3, 2.5, 4.0, 8.0)
FEWER = 0.1
"""If truncation does not avoid even a tenth of the saturation, the tails are not what saturates."""


def variants(budget: lab.Budget) -> lab.Variants:
    common = {"hidden": 3, "width": 128, "batch": 32, "steps": budget.pick(quick=300, full=3000), "optimizer": "adamw"}
    return {
        f"{unit}, {normal}": {**common, "unit": unit, "normal": dict(options)}
        for unit in UNITS
        for normal, options in NORMALS.items()
    }


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Measure saturation at initialization, by gain and at the recommended one; then train and evaluate."""
    digits = load_digits()
    unit, gain, edge = UNITS[settings["unit"]]
    images = digits.test_images.flatten(1)
    by_gain = [(g, _saturated([images @ _layer(settings, g, images.shape[1], 0, seed).weight.T], edge)) for g in GAINS]
    layers = [_layer(settings, gain, images.shape[1], 0, seed)]
    layers += [_layer(settings, gain, settings["width"], i, seed) for i in range(1, settings["hidden"])]
    head = Linear(settings["width"], CLASSES)
    inputs, x = [], images
    with torch.no_grad():
        for layer in layers:
            inputs.append(layer(x))
            x = unit()(inputs[-1])
    share_of_images = torch.cat([(z.abs() > edge).float().mean(dim=0) for z in inputs])  # one value per unit
    model = nn.Sequential(nn.Flatten(), *(part for layer in layers for part in (layer, unit())), head)
    losses = list(train_steps(model, digits, settings, settings["steps"], seed))
    diverged = len(losses) < settings["steps"]
    held_out = UNIFORM_GUESS if diverged else evaluate_digits(model, digits)
    return {
        "by_gain": by_gain,
        "saturated": _saturated(inputs, edge),
        "stuck": (share_of_images > 0.9).float().mean().item(),
        **held_out._asdict(),
        "curve": thinned([min(loss, 2 * UNIFORM_LOSS) for loss in losses]),
    }


def _layer(settings: lab.Settings, gain: float, d_in: int, number: int, seed: int) -> Linear:
    """A layer whose weights are equal for all normals, except for the truncated ones and a common factor."""
    torch.manual_seed(1000 * seed + number)
    init = Initialization("normal", lambda role, fan_in, *_: gain / math.sqrt(fan_in), **settings["normal"])
    return Linear(d_in, settings["width"], init=init)


def _saturated(inputs: list[Tensor], edge: float) -> float:
    return torch.cat(inputs).abs().gt(edge).float().mean().item()


def shared_lr(name: str) -> str:
    """Each unit is tuned with the full normal: only the initialization may differ."""
    return f"{name.partition(',')[0]}, full"


def avoided(runs: lab.BySeed, unit: str, normal: str) -> float:
    """The fraction of the full normal's saturation that this normal avoids."""
    return float(1 - runs[f"{unit}, {normal}"]["saturated"] / runs[f"{unit}, full"]["saturated"])


def questions(budget: lab.Budget) -> list[lab.Question]:
    def fewer(unit: str) -> lab.Question:
        text = f"{unit}: at equal standard deviation, truncation at 3 sigma avoids more than a tenth of the saturation"
        return lab.Question(text, lambda runs: avoided(runs, unit, SAME_STD), FEWER)

    def gained(unit: str) -> lab.Question:
        text = f"{unit}: after training, the loss from the full normal is more than {lab.IMAGE_MARGIN} nats higher"
        return lab.difference(text, f"{unit}, full", f"{unit}, {SAME_STD}", threshold=lab.IMAGE_MARGIN)

    return [ask(unit) for ask in (fewer, gained) for unit in UNITS]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    lines = []
    gains = [0.5 * 2 ** (i / 10) for i in range(41)]
    for (unit, (_, _, edge)), colors in zip(UNITS.items(), ("ab", "cd"), strict=True):
        for normal, color, offset in zip(("full", SAME_STD), colors, (-2, 2), strict=True):
            label = f"{unit}, {normal}"
            lines.append(lab.ChartLine(label, runs.curve(label, "by_gain"), color, connected=False, offset=offset))
        theory = [(gain, math.erfc(edge / gain / math.sqrt(2))) for gain in gains]
        lines.append(lab.ChartLine(f"{unit}, theory without tails", theory, colors[0], dashed=True))
    named = {normal: [f"{unit}, {normal}" for unit in UNITS] for normal in NORMALS}
    units, title, tenth = list(UNITS), "Saturation avoided by truncation", [("a tenth", FEWER)]
    saturated, losses = (lab.mean_lines(runs, metric, named) for metric in ("saturated", "loss"))
    truncated = {
        "equal standard deviation: tails alone": SAME_STD,
        "standard deviation also 1.3% smaller": "truncated",
    }
    shares = {
        label: [[avoided(seed, unit, normal) for seed in runs.by_seed()] for unit in units]
        for label, normal in truncated.items()
    }
    return [
        lab.Chart("Saturation by scale", "gain", "share, first layer", lines, log_x=True, y_from_zero=True),
        lab.Chart("Saturation at the recommended gain", "unit", "share, all layers", saturated, categories=units),
        lab.Chart(title, "unit", "share", lab.interval_lines(shares), tenth, units, y_from_zero=True),
        lab.Chart("After training, one learning rate", "unit", "nats, held out", losses, categories=units),
    ]


tuning = lab.lr_grid((3e-4, 1e-3, 3e-3, 1e-2, 3e-2), (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), seeds=(2, 3), shared=shared_lr)
EXPERIMENT = lab.Experiment(variants, measure, questions, charts, tuning)
