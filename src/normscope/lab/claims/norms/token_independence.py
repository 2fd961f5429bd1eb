"""Whether the normalized value of a token depends on other tokens."""

from typing import Any

import torch
from torch import Tensor

from normscope.lab import toolkit as lab
from normscope.lab.trials.layers import LIBRARIES, in_both, library_variants, max_difference, rms_difference

BATCH, TOKENS, WIDTH = 8, 16, 64
SIZES = (1.0, 3.0, 10.0, 30.0, 100.0)
LARGE = 10.0
"""Scale of the new token relative to the others; every trained language model has such outliers."""
NORMS = {"LayerNorm": "LayerNorm", "RMSNorm": "RMSNorm", "BatchNorm": "BatchNorm1d"}
EVAL = "BatchNorm in eval mode"
ROUNDING = 1e-6
"""Of outputs of rms 1 in float32. A norm that does not read other tokens gives identical values."""
DIFFERENT = 0.01
"""1% of the output's rms, in tokens that were not changed."""


def variants(budget: lab.Budget) -> lab.Variants:
    layers = {**NORMS, EVAL: "BatchNorm1d"}
    return library_variants({norm: {"layer": layer, "eval": norm == EVAL} for norm, layer in layers.items()})


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Replace one token, then one whole sample, and measure how far the outputs of all others move."""
    rng = torch.Generator().manual_seed(seed)
    layer: Any = getattr(LIBRARIES[settings["library"]], settings["layer"])(WIDTH)
    channels_first = settings["layer"] == "BatchNorm1d"  # it takes n c l
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=rng)
    new_token, new_sample = torch.randn(WIDTH, generator=rng), torch.randn(TOKENS, WIDTH, generator=rng)

    def norm(x: Tensor) -> Tensor:
        y: Tensor = layer(x.transpose(1, 2)).transpose(1, 2) if channels_first else layer(x)
        return y.detach()

    if settings["eval"]:
        norm(x)  # fills the running statistics
        layer.eval()

    before = norm(x)
    others = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    others[0, 3] = False
    first = (torch.arange(BATCH) == 0)[:, None].expand(BATCH, TOKENS)
    own_sample, other_sample = others & first, others & ~first  # the other tokens of the sequence, and of the batch

    def with_token(size: float) -> Tensor:
        changed = x.clone()
        changed[0, 3] = size * new_token
        return norm(changed)

    with_sample, with_large = norm(torch.cat([LARGE * new_sample[None], x[1:]])), with_token(LARGE)
    return {
        "by_token": rms_difference(with_large[own_sample], before[own_sample]),
        "by_sample": rms_difference(with_sample[other_sample], before[other_sample]),
        "furthest": max(
            max_difference(with_large[others], before[others]),
            max_difference(with_sample[other_sample], before[other_sample]),
        ),
        "by_size": [(size, rms_difference(with_token(size)[others], before[others])) for size in SIZES],
    }


def questions(budget: lab.Budget) -> list[lab.Question]:
    def independent(norm: str) -> lab.Question:
        text = f"{norm}: no value of any other token changes when a token or a sample is replaced"
        return lab.largest(text, "furthest", ROUNDING, in_both(norm))

    def dependent(metric: str, what: str) -> lab.Question:
        text = f"BatchNorm in training: a token changes when {what} is replaced"
        return lab.smallest(text, metric, DIFFERENT, in_both("BatchNorm"))

    return [
        independent("LayerNorm"),
        independent("RMSNorm"),
        dependent("by_token", "another token of its sequence"),
        dependent("by_sample", "another sample"),
        independent(EVAL),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    names = [*NORMS, EVAL]
    lines = lab.lines({norm: runs.curve(f"normscope {norm}", "by_size") for norm in names})
    by_library = {library: [f"{library} {norm}" for norm in names] for library in LIBRARIES}
    by_sample, short = lab.mean_lines(runs, "by_sample", by_library), ("Layer", "RMS", "Batch", "Batch, eval")
    size = "scale of the new token, relative to the others"
    return [
        lab.Chart("Change of all others if one of 128 tokens is replaced", size, "change (rms)", lines, log_x=True),
        lab.Chart("If another sample is replaced", "norm", "change (rms)", by_sample, categories=short),
    ]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
