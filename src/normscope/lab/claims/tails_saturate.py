"""Do the tails of a normal saturate sigmoid and tanh units at the start, or is it the scale of all weights?"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.blocks.initialization import Initialization
from normscope.blocks.linear import Linear
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, LRTuning, Settings
from normscope.lab.report.charts import categories, interval_dots
from normscope.lab.statistics import confidence_interval
from normscope.lab.trials.curves import thinned
from normscope.lab.trials.digits import CLASSES, FIXED_SPLIT, SIZE, load_digits
from normscope.lab.trials.images import IMAGE_MARGIN, UNIFORM_GUESS, UNIFORM_LOSS, evaluate_digits, fit
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import Chart, ChartLine

UNITS: Mapping[str, tuple[type[nn.Module], float, float]] = {
    "tanh": (nn.Tanh, 5 / 3, math.atanh(math.sqrt(0.95))),
    "sigmoid": (nn.Sigmoid, 4.0, 2 * math.atanh(math.sqrt(0.95))),
}
"""A unit, the gain that is recommended for it (a weight's std times sqrt(d_in)), and the input beyond which its
derivative is less than a twentieth of what it is at zero: from there on it is called saturated."""
NORMALS: Mapping[str, Mapping[str, Any]] = {
    "whole": {"cut": None},
    "cut": {"cut": 3.0},
    "cut, same std": {"cut": 3.0, "corrected": True},
}
"""To cut the tails off also makes the standard deviation smaller, by 1.3% at 3 sigma. Only with the third, which is
widened by as much again, is it the tails alone that differ from the first."""
GAINS = (0.5, 1.0, 5 / 3, 2.5, 4.0, 8.0)
LESS = 0.1
"""Of the saturated: if cutting the tails off does not spare even a tenth of them, the tails are not what saturates."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    common = {"hidden": 3, "width": 128, "batch": 32, "steps": budget.pick(quick=300, full=3000), "optimizer": "adamw"}
    return {
        f"{unit}, {normal}": {**common, "unit": unit, "normal": dict(how)}
        for unit in UNITS
        for normal, how in NORMALS.items()
    }


def measure(settings: Settings, seed: int) -> Metrics:
    """Who is saturated at the start, by gain and at the recommended one; then train, and measure the loss."""
    digits = load_digits()
    unit, gain, edge = UNITS[settings["unit"]]
    images = digits.test_images.flatten(1)
    by_gain = [(g, _beyond([images @ _layer(settings, g, images.shape[1], 0, seed).weight.T], edge)) for g in GAINS]
    layers = [_layer(settings, gain, SIZE**2, 0, seed)]
    layers += [_layer(settings, gain, settings["width"], i, seed) for i in range(1, settings["hidden"])]
    head = Linear(settings["width"], CLASSES)
    before, x = [], images
    with torch.no_grad():
        for layer in layers:
            before.append(layer(x))
            x = unit()(before[-1])
    every_seed = torch.cat([(z.abs() > edge).float().mean(dim=0) for z in before])  # of each unit: on how many pictures
    model = nn.Sequential(nn.Flatten(), *(part for layer in layers for part in (layer, unit())), head)
    losses, _ = fit(model, digits, settings, settings["steps"], seed)
    diverged = len(losses) < settings["steps"]
    held_out = UNIFORM_GUESS if diverged else evaluate_digits(model, digits)
    return {
        "by_gain": by_gain,
        "saturated": _beyond(before, edge),
        "stuck": (every_seed > 0.9).float().mean().item(),
        **held_out._asdict(),
        "curve": thinned([min(one, 2 * UNIFORM_LOSS) for one in losses]),
    }


def _layer(settings: Settings, gain: float, d_in: int, number: int, seed: int) -> Linear:
    """A layer whose weights are the same with each way to cut, except for those that are cut, and a common factor."""
    torch.manual_seed(1000 * seed + number)
    init = Initialization("normal", lambda role, fan_in, *_: gain / math.sqrt(fan_in), **settings["normal"])
    return Linear(d_in, settings["width"], init=init)


def _beyond(inputs: list[Tensor], edge: float) -> float:
    return torch.cat(inputs).abs().gt(edge).float().mean().item()


def tuning(budget: Budget) -> LRTuning:
    """A unit's rate is found for the whole normal, and all of its variants take it: only the start may differ."""
    return LRTuning(
        lrs=budget.pick(quick=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2), full=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2)),
        seeds=budget.pick(quick=2, full=3),
        shared={f"{unit}, {normal}": f"{unit}, whole" for unit in UNITS for normal in NORMALS if normal != "whole"},
    )


def spared(runs: BySeed, unit: str, normal: str) -> float:
    """The share of those saturated from whole normals that are not so from these."""
    return float(1 - runs[f"{unit}, {normal}"]["saturated"] / runs[f"{unit}, whole"]["saturated"])


def questions(budget: Budget) -> list[Question]:
    def fewer(unit: str) -> Question:
        text = f"{unit}: at the same standard deviation, cutting at 3 sigma spares more than a tenth of the saturated"
        return Question(text, lambda runs: spared(runs, unit, "cut, same std"), LESS)

    def gained(unit: str) -> Question:
        def effect(runs: BySeed) -> float:
            return float(runs[f"{unit}, whole"]["loss"] - runs[f"{unit}, cut, same std"]["loss"])

        text = f"{unit}: after training, whole normals are more than {IMAGE_MARGIN} nats worse than such cut ones"
        return Question(text, effect, IMAGE_MARGIN, unit="nats")

    return [ask(unit) for ask in (fewer, gained) for unit in UNITS]


def charts(runs: VariantRuns) -> list[Chart]:
    lines = []
    gains = [0.5 * 2 ** (i / 10) for i in range(41)]
    for (unit, (_, _, edge)), colours in zip(UNITS.items(), ("ab", "cd"), strict=True):
        for normal, colour, beside in zip(("whole", "cut, same std"), colours, (-2, 2), strict=True):
            points = runs.curve(f"{unit}, {normal}", "by_gain")
            lines.append(ChartLine(f"{unit}, {normal}", points, colour, connected=False, offset=beside))
        theory = [(gain, math.erfc(edge / gain / math.sqrt(2))) for gain in gains]
        lines.append(ChartLine(f"{unit}, theory without tails", theory, colours[0], dashed=True))
    named = {normal: [f"{unit}, {normal}" for unit in UNITS] for normal in NORMALS}
    units = list(UNITS)
    saved = [
        interval_dots(
            label,
            [
                (place + shift, confidence_interval([spared(seed, unit, normal) for seed in runs.by_seed()]))
                for place, unit in enumerate(units)
            ],
            colour,
        )
        for label, normal, shift, colour in (
            ("same standard deviation: the tails alone", "cut, same std", -0.06, "a"),
            ("1.3% smaller standard deviation as well", "cut", 0.06, "b"),
        )
    ]
    return [
        Chart("Saturated at the start, by scale", "gain", "share, first layer", lines, log_x=True, y_from_zero=True),
        categories(
            "Saturated at the start, at the usual gain", "unit", "share, all layers", runs, "saturated", named, units
        ),
        Chart(
            "What cutting spares of the saturated",
            "unit",
            "share of them",
            saved,
            categories=units,
            reference_lines=[("a tenth", LESS)],
            y_from_zero=True,
        ),
        categories("After training, all at one rate", "unit", "nats, held out", runs, "loss", named, units),
    ]


CLAIM = Claim(
    number=4,
    name="tails-saturate",
    kind="trained",
    statement=(
        "The tails of a normal saturate sigmoid and tanh units at the start: cutting them off at 3 sigma spares the "
        "units, and with that the network learns better."
    ),
    source="Notes on initialization, which give it as the reason for cutting.",
    design=(
        "Networks of three hidden layers on the digits, with tanh and with sigmoid, at the gains that are recommended "
        "for them (5/3 and 4), from whole normals, normals cut at 3 sigma, and such normals widened to the whole one's "
        "standard deviation. All are drawn alike, so that whole and widened ones differ by their tails; without the "
        "widening the standard deviation is 1.3% smaller, and what that does is drawn apart. A unit is saturated on a "
        "picture where its derivative is below a twentieth of its largest. Networks of one unit train at one rate, the "
        f"best from whole normals. {FIXED_SPLIT}"
    ),
    rule=(
        f"Supported if, at the same standard deviation, cutting spares more than {LESS:.0%} of the saturated and "
        f"lowers the held-out loss by more than {IMAGE_MARGIN} nats, with tanh and with sigmoid. The "
        "first two questions, on "
        "the start, are what the notes say; the other two, on what the network learns from there, come second."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    tuning=tuning,
    meaning={
        "supported": "Cut the normals of networks with sigmoid or tanh: their tails cost units at the start.",
        "contradicted": (
            "Not all of it holds here, and the answers below say what does not. Where the tails saturate next to "
            "nothing: a unit adds up many weights, and one far out among them hardly moves the sum. What saturates "
            "units then is the scale of all weights together, as theory without tails says. Choose the scale with care."
        ),
        "inconclusive": (
            "Part of what the tails do cannot be told from chance here; the answers below say which. Look to the scale "
            "of all weights first, by which the first chart goes."
        ),
    },
    remark="The notes speak of weights ten sigma out: of a billion billion draws from a normal, none is.",
    revised="different standard deviations were compared at different rates",
)
