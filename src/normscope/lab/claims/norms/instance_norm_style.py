"""Which norms remove the brightness and contrast of an image, and what padding brings back."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.lab import toolkit as lab
from normscope.lab.trials.layers import LIBRARIES, in_both, library_variants, rms, rms_difference

IMAGES, CHANNELS, SIZE = 8, 3, 16
OFFSETS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
CONTRASTS = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
NORMS = {"InstanceNorm": "InstanceNorm2d", "BatchNorm": "BatchNorm2d", "LayerNorm": "LayerNorm"}
PADDINGS = {"zeros": "constant", "reflections": "reflect"}
"""And the mode of torch's pad."""
GONE = 1e-3
"""Relative to the output: what eps leaves at a quarter of the contrast, which is invisible."""
SEEN = 0.1
"""A tenth of the output's rms."""


def variants(budget: lab.Budget) -> lab.Variants:
    return library_variants({norm: {"norm": norm} for norm in NORMS})


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Change brightness or contrast of one image of a batch, in all channels or in one; measure its output's change."""
    library: Any = LIBRARIES[settings["library"]]
    size: Any = (CHANNELS, SIZE, SIZE) if settings["norm"] == "LayerNorm" else CHANNELS
    layer = getattr(library, NORMS[settings["norm"]])(size)
    rng = torch.Generator().manual_seed(seed)
    x = F.interpolate(torch.randn(IMAGES, CHANNELS, 5, 5, generator=rng), size=(SIZE, SIZE), mode="bicubic")
    x = (x - x.mean()) / x.std()
    weights = torch.randn(CHANNELS, CHANNELS, 3, 3, generator=rng)

    def alone(x: Tensor) -> Tensor:
        return torch.as_tensor(layer(x))

    def after_convolution(x: Tensor, padding: str) -> Tensor:
        return alone(F.conv2d(F.pad(x, (1, 1, 1, 1), mode=PADDINGS[padding]), weights))

    def moved(changed: Tensor, network: Callable[[Tensor], Tensor] = alone) -> float:
        """The relative change of the image's output."""
        before, after = network(x)[0], network(torch.cat([changed[None], x[1:]]))[0]
        return rms_difference(after, before) / rms(before)

    image = x[0]
    middle = image.mean(dim=(1, 2), keepdim=True)
    one_channel = torch.tensor([1.0, 0.0, 0.0]).reshape(-1, 1, 1)
    curves = {
        "brightness": [(by, moved(image + by)) for by in OFFSETS],
        "contrast": [(by, moved(image.mean() + by * (image - image.mean()))) for by in CONTRASTS],
        "tint": [(by, moved(image + by * one_channel)) for by in OFFSETS],
        "own_contrast": [(by, moved(middle + (1 + (by - 1) * one_channel) * (image - middle))) for by in CONTRASTS],
    }
    padded = {
        f"padded {padding}": [(by, moved(image + by, partial(after_convolution, padding=padding))) for by in OFFSETS]
        for padding in PADDINGS
    }
    return {
        **curves,
        **padded,
        "most": max(change for curve in curves.values() for _, change in curve),
        "brighter": dict(curves["brightness"])[1.0],
        "doubled": dict(curves["contrast"])[2.0],
        "most behind reflections": max(change for _, change in padded["padded reflections"]),
        "brighter behind zeros": dict(padded["padded zeros"])[1.0],
    }


def questions(budget: lab.Budget) -> list[lab.Question]:
    instance, batch = in_both("InstanceNorm"), in_both("BatchNorm")
    after = "InstanceNorm after a convolution padded with"
    removed = "InstanceNorm: no brightness and no contrast, of all channels or of one, changes the output"
    brighter = "BatchNorm: an image that is one standard deviation brighter changes the output"
    reflected = f"{after} reflections: no brightness changes the output"
    return [
        lab.largest(removed, "most", GONE, instance),
        lab.smallest(brighter, "brighter", SEEN, batch),
        lab.smallest("BatchNorm: an image with twice the contrast changes the output", "doubled", SEEN, batch),
        lab.largest(reflected, "most behind reflections", GONE, instance),
        lab.smallest(f"{after} zeros: the brighter image changes the output", "brighter behind zeros", SEEN, instance),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    offset, change = "added brightness, in standard deviations", "relative change of the output"

    def chart(title: str, x_label: str, metric: str, log_x: bool = False) -> lab.Chart:
        # InstanceNorm comes last and without a line, which would hide LayerNorm's where both are zero.
        found = {norm: runs.curve(f"normscope {norm}", metric) for norm in NORMS}
        lines = lab.lines(found, dots_only=["InstanceNorm"], dots=False)[::-1]
        return lab.Chart(title, x_label, change, lines, log_x=log_x, height=220)

    variant = "normscope InstanceNorm"
    padded = lab.lines({f"padded with {padding}": runs.curve(variant, f"padded {padding}") for padding in PADDINGS})
    return [
        chart("Brightness of one of eight images", offset, "brightness"),
        chart("Contrast of one of eight images", "contrast factor", "contrast", log_x=True),
        lab.Chart("InstanceNorm after a 3 x 3 convolution", offset, change, padded, height=220),
    ]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
