"""Which norms take the brightness and contrast of a picture away, and what padding gives back."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.trials.layers import LIBRARIES, rms, rms_difference
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import Chart, ChartLine

PICTURES, CHANNELS, SIZE = 8, 3, 16
BRIGHTER = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
CONTRAST = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
NORMS = ("InstanceNorm", "BatchNorm", "LayerNorm")
PADDINGS = {"zeros": "constant", "reflections": "reflect"}
"""And what torch calls them."""
GONE = 1e-3
"""Of the output's size: what eps leaves of a quarter of the contrast, and nobody can see."""
SEEN = 0.1
"""A tenth of the output's size."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {f"{library} {norm}": {"library": library, "norm": norm} for library in LIBRARIES for norm in NORMS}


def measure(settings: Settings, seed: int) -> Metrics:
    """One picture of a batch is made brighter, or of more contrast, in all channels or in one; how far does it move?"""
    library: Any = LIBRARIES[settings["library"]]
    layer = {
        "InstanceNorm": lambda: library.InstanceNorm2d(CHANNELS),
        "BatchNorm": lambda: library.BatchNorm2d(CHANNELS),
        "LayerNorm": lambda: library.LayerNorm((CHANNELS, SIZE, SIZE)),
    }[settings["norm"]]()
    chance = torch.Generator().manual_seed(seed)
    x = F.interpolate(torch.randn(PICTURES, CHANNELS, 5, 5, generator=chance), size=(SIZE, SIZE), mode="bicubic")
    x = (x - x.mean()) / x.std()
    weights = torch.randn(CHANNELS, CHANNELS, 3, 3, generator=chance)

    def alone(x: Tensor) -> Tensor:
        return torch.as_tensor(layer(x))

    def behind_convolution(x: Tensor, padding: str) -> Tensor:
        return alone(F.conv2d(F.pad(x, (1, 1, 1, 1), mode=PADDINGS[padding]), weights))

    def moved(change: Tensor, network: Callable[[Tensor], Tensor] = alone) -> float:
        """By how much the picture comes out otherwise, as a share of its size."""
        before, after = network(x)[0], network(torch.cat([change[None], x[1:]]))[0]
        return rms_difference(after, before) / rms(before)

    picture = x[0]
    middle = picture.mean(dim=(1, 2), keepdim=True)
    one_channel = torch.tensor([1.0, 0.0, 0.0]).reshape(-1, 1, 1)
    brightness = [(by, moved(picture + by)) for by in BRIGHTER]
    contrast = [(by, moved(picture.mean() + by * (picture - picture.mean()))) for by in CONTRAST]
    tint = [(by, moved(picture + by * one_channel)) for by in BRIGHTER]
    own_contrast = [(by, moved(middle + (1 + (by - 1) * one_channel) * (picture - middle))) for by in CONTRAST]
    padded = {
        f"padded {padding}": [
            (by, moved(picture + by, partial(behind_convolution, padding=padding))) for by in BRIGHTER
        ]
        for padding in PADDINGS
    }
    curves = {"brightness": brightness, "contrast": contrast, "tint": tint, "own_contrast": own_contrast}
    return {
        **curves,
        **padded,
        "most": max(change for curve in curves.values() for _, change in curve),
        "brighter": dict(brightness)[1.0],
        "doubled": dict(contrast)[2.0],
        "most behind reflections": max(change for _, change in padded["padded reflections"]),
        "brighter behind zeros": dict(padded["padded zeros"])[1.0],
    }


def questions(budget: Budget) -> list[Question]:
    def gone(text: str, metric: str) -> Question:
        def effect(runs: BySeed) -> float:
            return max(float(runs[f"{library} InstanceNorm"][metric]) for library in LIBRARIES)

        return Question(text, effect, threshold=GONE, side="below", every_seed=True)

    def kept(text: str, metric: str, norm: str = "BatchNorm") -> Question:
        def effect(runs: BySeed) -> float:
            return min(float(runs[f"{library} {norm}"][metric]) for library in LIBRARIES)

        return Question(text, effect, threshold=SEEN, side="above", every_seed=True)

    behind = "InstanceNorm behind a convolution padded with"
    return [
        gone("InstanceNorm: no brightness and no contrast, of all channels or of one, changes what comes out", "most"),
        kept("BatchNorm: a picture that is brighter by a standard deviation comes out otherwise", "brighter"),
        kept("BatchNorm: a picture with twice the contrast comes out otherwise", "doubled"),
        gone(f"{behind} reflections: no brightness changes what comes out", "most behind reflections"),
        kept(f"{behind} zeros: the brighter picture comes out otherwise", "brighter behind zeros", "InstanceNorm"),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    def chart(title: str, label: str, metric: str, log_x: bool = False) -> Chart:
        lines = [
            # InstanceNorm's dots come last and without a line, which would hide LayerNorm's where both are zero.
            ChartLine(norm, runs.curve(f"normscope {norm}", metric), colour, connected=norm != "InstanceNorm")
            for norm, colour in zip(reversed(NORMS), "cba", strict=True)
        ]
        return Chart(title, label, "change of the output", lines, log_x=log_x, height=220)

    added = "brightness added, in standard deviations"
    return [
        chart("One picture of eight made brighter", added, "brightness"),
        chart("With more contrast, or less", "contrast, times", "contrast", log_x=True),
        Chart(
            "InstanceNorm behind a 3 x 3 convolution",
            added,
            "change of the output",
            [
                ChartLine(
                    f"padded with {padding}",
                    runs.curve("normscope InstanceNorm", f"padded {padding}"),
                    colour,
                    dots=True,
                )
                for padding, colour in zip(PADDINGS, "ab", strict=True)
            ],
            height=220,
        ),
    ]


CLAIM = Claim(
    number=13,
    name="instance-norm-style",
    kind="exact",
    statement=(
        "InstanceNorm removes the brightness and the contrast, the “style”, of a picture; BatchNorm does not. Behind a "
        "convolution it still removes brightness if the border is padded with reflections, and not if with zeros."
    ),
    source=(
        "Notes on normalization; Ulyanov, Vedaldi and Lempitsky 2016, “Instance Normalization: The Missing Ingredient "
        "for Fast Stylization”."
    ),
    design=(
        "One of eight smooth random pictures is made brighter or given another contrast, in all channels or in one, "
        "and its output compared with what it was, in normscope's layers and torch's, in training. Then the same for "
        "brightness with a random 3 x 3 convolution before the norm, padded with zeros and with reflections."
    ),
    rule=(
        f"Supported if, for every seed and in both libraries, InstanceNorm's output never moves by {GONE:g} of its "
        f"size, alone or behind the convolution with reflections; BatchNorm's moves by more than {SEEN:g} for one "
        f"standard deviation of brightness and for twice the contrast; and so does InstanceNorm's for that brightness "
        f"behind the convolution with zeros."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "Take InstanceNorm where the light of a picture should not matter, as in style transfer, and not where it "
            "does. But a network of InstanceNorms is blind to it only if its convolutions are: a border of zeros stays "
            "dark in a bright picture, which the convolution turns into an edge, and the norm spreads it over the "
            "whole picture. Pad with reflections if the light must not be seen."
        ),
        "contradicted": "Do not rely on the norm for it: what should go stays, or BatchNorm takes it away as well.",
        "inconclusive": "The changes are too close to what eps leaves to tell.",
    },
    remark=(
        "LayerNorm over c h w removes them as well if all channels change alike, but keeps a tint, a brightness of "
        "one channel. And BatchNorm removes what all pictures of a batch have in common."
    ),
    revised="a part of its design",
)
