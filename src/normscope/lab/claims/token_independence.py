"""Whether a token's norm depends on other tokens."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.report.charts import categories
from normscope.lab.trials.layers import LIBRARIES, max_difference, rms_difference
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import COLORS, Chart, ChartLine

BATCH, TOKENS, WIDTH = 8, 16, 64
SIZES = (1.0, 3.0, 10.0, 30.0, 100.0)
LARGE = 10.0
"""How many times as large as the others the new token is: some are, in every trained language model."""
NORMS = {"LayerNorm": "LayerNorm", "RMSNorm": "RMSNorm", "BatchNorm": "BatchNorm1d"}
EVAL = "BatchNorm in eval mode"
ROUNDING = 1e-6
"""Of outputs of size 1 in float32. A norm that does not look at other tokens gives the very same number."""
DIFFERENT = 0.01
"""A hundredth of the output's size, in tokens that nobody touched."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {
        f"{library} {norm}": {"library": library, "layer": NORMS.get(norm, "BatchNorm1d"), "eval": norm == EVAL}
        for library in LIBRARIES
        for norm in (*NORMS, EVAL)
    }


def measure(settings: Settings, seed: int) -> Metrics:
    """One token, then one whole sample, is replaced; how far do the outputs of all others move?"""
    chance = torch.Generator().manual_seed(seed)
    layer: Any = getattr(LIBRARIES[settings["library"]], settings["layer"])(WIDTH)
    by_channel = settings["layer"] == "BatchNorm1d"  # it takes n c l
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=chance)
    new_token, new_sample = torch.randn(WIDTH, generator=chance), torch.randn(TOKENS, WIDTH, generator=chance)

    def norm(x: Tensor) -> Tensor:
        y: Tensor = layer(x.transpose(1, 2)).transpose(1, 2) if by_channel else layer(x)
        return y.detach()

    if settings["eval"]:
        norm(x)  # something to remember
        layer.eval()

    before = norm(x)
    own_sample, other_sample = torch.ones(BATCH, TOKENS, dtype=torch.bool), torch.ones(BATCH, TOKENS, dtype=torch.bool)
    own_sample[0, 3], own_sample[1:] = False, False  # the others of the sequence
    other_sample[0] = False

    def with_token(size: float) -> Tensor:
        changed = x.clone()
        changed[0, 3] = size * new_token
        return norm(changed)

    changed = x.clone()
    changed[0] = LARGE * new_sample
    with_sample, with_large = norm(changed), with_token(LARGE)
    others = own_sample | other_sample
    return {
        "by_token": rms_difference(with_large[own_sample], before[own_sample]),
        "by_sample": rms_difference(with_sample[other_sample], before[other_sample]),
        "furthest": max(
            max_difference(with_large[others], before[others]),
            max_difference(with_sample[other_sample], before[other_sample]),
        ),
        "by_size": [(size, rms_difference(with_token(size)[others], before[others])) for size in SIZES],
    }


def questions(budget: Budget) -> list[Question]:
    def apart_from_others(norm: str) -> Question:
        def effect(runs: BySeed) -> float:
            return max(float(runs[f"{library} {norm}"]["furthest"]) for library in LIBRARIES)

        text = f"{norm}: no number of any other token changes when a token or a sample is replaced"
        return Question(text, effect, threshold=ROUNDING, side="below", every_seed=True)

    def dependent(metric: str, text: str) -> Question:
        def effect(runs: BySeed) -> float:
            return min(float(runs[f"{library} BatchNorm"][metric]) for library in LIBRARIES)

        return Question(text, effect, threshold=DIFFERENT, side="above", every_seed=True)

    return [
        apart_from_others("LayerNorm"),
        apart_from_others("RMSNorm"),
        dependent("by_token", "BatchNorm in training: a token changes when another of its sequence is replaced"),
        dependent("by_sample", "BatchNorm in training: a token changes when another sample is replaced"),
        apart_from_others(EVAL),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    names = [*NORMS, EVAL]
    lines = [
        ChartLine(norm, runs.curve(f"normscope {norm}", "by_size"), colour, dots=True)
        for norm, colour in zip(names, COLORS, strict=False)
    ]
    those = {library: [f"{library} {norm}" for norm in names] for library in LIBRARIES}
    short = ("Layer", "RMS", "Batch", "Batch, eval")
    size = "size of the new token, the others' being 1"
    return [
        Chart("How far all others move when one of 128 tokens is replaced", size, "change (rms)", lines, log_x=True),
        categories("When another sample is replaced", "norm", "change (rms)", runs, "by_sample", those, short),
    ]


CLAIM = Claim(
    number=9,
    name="token-independence",
    kind="exact",
    statement=(
        "LayerNorm and RMSNorm of a token do not depend on any other token or sample; BatchNorm's do, as long as it "
        "trains."
    ),
    source="Notes on LayerNorm and on normalization; Ba, Kiros and Hinton 2016, “Layer Normalization”.",
    design=(
        f"{BATCH} random sequences of {TOKENS} tokens; one token, or one sequence, is replaced by another that is "
        f"{LARGE:g} times as large, and the outputs of all the others are compared, in normscope's layers and torch's."
    ),
    rule=(
        f"Supported if, for every seed and in both libraries, no other number of LayerNorm's and RMSNorm's changes by "
        f"{ROUNDING:g}, nor of BatchNorm's in eval mode, and BatchNorm's in training do by more than {DIFFERENT:g} rms."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "With LayerNorm or RMSNorm a text means the same alone and in a batch, and the batch may be of any size. "
            "With BatchNorm one token of unusual size moves everyone else's input in training, and none in eval mode: "
            "the model that is trained is not quite the one that is used."
        ),
        "contradicted": "A norm sees more, or less, of the batch than its scope says. Do not batch texts with it.",
        "inconclusive": "The changes are too close to rounding to tell.",
    },
)
