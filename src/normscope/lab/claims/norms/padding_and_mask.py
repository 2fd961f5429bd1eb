"""What padding does to the statistics of a norm, with and without a mask."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.blocks.norm.norm_spec import TEXT_NORMS
from normscope.lab import toolkit as lab
from normscope.lab.trials.layers import LIBRARIES, max_difference, rms
from normscope.lab.trials.text_sources import STORIES, load_text

LENGTH, ROWS, WIDTH = 64, 16, 32
SKEWS = (0.0, 0.25, 2 / 3, 1.5, 4.0)
"""Row i has a length of (i / rows)^skew; the share of padding is about skew / (skew + 1)."""
USUAL = 2 / 3
"""More than a third of padding, as in unsorted texts of different lengths."""
NORMS = ("layer", "rms", "rms-plain", "group", "instance", "batch", "power")
"""Stored results have a row in this order."""
PER_TOKEN = ("layer", "rms", "rms-plain", "group")
"""Norms that treat each token independently and need no mask."""
ROUNDING = 1e-5
DIFFERENT = 0.1
"""In standard deviations: the sampling noise of a mean over a hundred tokens."""


def variants(budget: lab.Budget) -> lab.Variants:
    return {library: {"library": library, "text": STORIES} for library in LIBRARIES}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Pad texts of different lengths; measure BatchNorm's statistics, and every norm's output at real tokens."""
    rng = torch.Generator().manual_seed(seed)
    text = torch.from_numpy(load_text(settings["text"]).train).long()
    begin = torch.randint(len(text) - LENGTH, (ROWS, 1), generator=rng)
    tokens = text[begin + torch.arange(LENGTH)]
    table = torch.randn(256, WIDTH, generator=rng)
    pad = torch.randn(WIDTH, generator=rng)  # the embedding of the padding token
    metrics: dict[str, Any] = {"mean": [], "mean_theory": [], "spread": [], "spread_theory": [], "masked": []}
    for skew in SKEWS:
        lengths = (LENGTH * (torch.arange(1, ROWS + 1) / ROWS) ** skew).round().clamp(min=1)
        mask = torch.arange(LENGTH) < lengths[:, None]
        share = 1 - mask.float().mean().item()
        x = torch.where(mask[..., None], table[tokens], pad)
        real = x[mask].double()
        mean, variance = real.mean(0), real.var(0, correction=0)
        distance = (pad - mean) / variance.sqrt()
        padded = _statistics(settings["library"], x)
        metrics["mean"].append((share, rms((padded[0] - mean) / variance.sqrt())))
        metrics["mean_theory"].append((share, share * rms(distance)))
        metrics["spread"].append((share, (padded[1] / variance).mean().item()))
        metrics["spread_theory"].append((share, (1 - share) * (1 + share * distance.square().mean().item())))
        if skew == USUAL:
            metrics["usual"] = metrics["mean"][-1][1]
        if settings["library"] == "normscope":
            masked = _statistics("normscope", x, mask)
            metrics["masked"].append((share, rms((masked[0] - mean) / variance.sqrt())))
            for name, given in (("without", False), ("with", True)):
                metrics.setdefault(name, []).append([_moved(norm, x, mask, given=given) for norm in NORMS])
    return metrics


def _statistics(library: str, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """BatchNorm's running mean and biased variance after this batch; the layer keeps the unbiased variance."""
    layer: Any = LIBRARIES[library].BatchNorm1d(WIDTH, momentum=1.0)
    count = x.shape[0] * x.shape[1] if mask is None else int(mask.sum())
    layer(x.transpose(1, 2), *(() if mask is None else (mask[:, None],)))
    return layer.running_mean.double(), layer.running_var.double() * (count - 1) / count


def _moved(name: str, x: Tensor, mask: Tensor, *, given: bool) -> float:
    """How far padding moves a norm's output at real tokens, and its running statistics."""
    padded, alone = (TEXT_NORMS[name].build((None, None, WIDTH)) for _ in range(2))
    y = padded(x, mask if given else None)[mask]
    if name == "instance":  # each text has its own statistics
        want = torch.cat([alone(row[real][None])[0] for row, real in zip(x, mask, strict=True)])
    else:
        want = alone(x[mask][None])[0]
    buffers = zip(padded.buffers(), alone.buffers(), strict=True)
    return max(max_difference(y, want), *(max_difference(one, other) for one, other in buffers), 0.0)


def questions(budget: lab.Budget) -> list[lab.Question]:
    def unmoved(text: str, metric: str, norms: Sequence[str]) -> lab.Question:
        at, own = [NORMS.index(name) for name in norms], ["normscope"]
        return lab.largest(text, lambda run: max(row[i] for row in run[metric] for i in at), ROUNDING, own)

    shift = "more than a third of padding moves BatchNorm's running mean"
    return [
        lab.smallest(shift, "usual", DIFFERENT, unit="standard deviations"),
        unmoved("with the mask no norm is affected by any share of padding", "with", NORMS),
        unmoved("LayerNorm, RMSNorm and GroupNorm need no mask for that", "without", PER_TOKEN),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    def lines(metric: str) -> list[lab.ChartLine]:
        return [
            lab.ChartLine("normscope, no mask", runs.curve("normscope", metric), "a"),
            lab.ChartLine("theory", runs.curve("normscope", f"{metric}_theory"), "d", dashed=True),
            lab.ChartLine("torch", runs.curve("torch", metric), "b", connected=False),
        ]

    def changes(label: str, metric: str, color: str) -> lab.ChartLine:
        rows = [metrics[metric][SKEWS.index(USUAL)] for metrics in runs.metrics["normscope"]]
        points = [(at, max(row[at] for row in rows)) for at in range(len(NORMS))]
        return lab.ChartLine(label, points, color, connected=False)

    masked = lab.ChartLine("normscope, with mask", runs.curve("normscope", "masked"), "c", dots=True)
    by_norm = [changes("no mask", "without", "a"), changes("with mask", "with", "c")]
    share, moved = "share of padding", "shift, in standard deviations"
    return [
        lab.Chart("BatchNorm's running mean", share, moved, [*lines("mean"), masked]),
        lab.Chart("BatchNorm's running variance", share, "padded / real", lines("spread")),
        lab.Chart("More than a third of padding", "norm", "largest change", by_norm, categories=NORMS),
    ]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
