"""What padding does to the statistics of a norm, without a mask and with one."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.blocks.norm.spec import TEXT_NORMS
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.trials.layers import LIBRARIES, max_difference, rms
from normscope.lab.trials.text_sources import STORIES, load_text
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import Chart, ChartLine

LENGTH, ROWS, WIDTH = 64, 16, 32
SKEWS = (0.0, 0.25, 2 / 3, 1.5, 4.0)
"""Row i has (i / rows)^skew of the length; the share of padding is about skew / (skew + 1)."""
USUAL = 2 / 3
"""Over a third of padding: what texts of different lengths have that nobody sorted."""
ALONE = ("layer", "rms", "rms-plain", "group")
"""The norms that take each token by itself and so need no mask."""
ROUNDING = 1e-5
DIFFERENT = 0.1
"""In standard deviations: what chance does to a mean over a hundred tokens."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {library: {"library": library, "text": STORIES} for library in LIBRARIES}


def measure(settings: Settings, seed: int) -> Metrics:
    """Texts of different lengths as padded batches: BatchNorm's statistics, and every norm's results at real tokens."""
    chance = torch.Generator().manual_seed(seed)
    text = torch.from_numpy(load_text(settings["text"]).train).long()
    begin = torch.randint(len(text) - LENGTH, (ROWS, 1), generator=chance)
    tokens = text[begin + torch.arange(LENGTH)]
    table = torch.randn(256, WIDTH, generator=chance)
    pad = torch.randn(WIDTH, generator=chance)  # the embedding of padding, one among others
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
        theory = (1 - share) * (1 + share * distance.square().mean().item())
        metrics["spread_theory"].append((share, theory))
        if skew == USUAL:
            metrics["usual"] = metrics["mean"][-1][1]
        if settings["library"] == "normscope":
            masked = _statistics("normscope", x, mask)
            metrics["masked"].append((share, rms((masked[0] - mean) / variance.sqrt())))
            moved = {
                name: (_moved(name, x, mask, given=False), _moved(name, x, mask, given=True)) for name in TEXT_NORMS
            }
            metrics.setdefault("without", []).append([moved[name][0] for name in TEXT_NORMS])
            metrics.setdefault("with", []).append([moved[name][1] for name in TEXT_NORMS])
    return metrics


def _statistics(library: str, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean and the variance that BatchNorm remembers of this batch; its variance is the unbiased one."""
    layer: Any = LIBRARIES[library].BatchNorm1d(WIDTH, momentum=1.0)
    count = x.shape[0] * x.shape[1] if mask is None else int(mask.sum())
    layer(x.transpose(1, 2), *(() if mask is None else (mask[:, None],)))
    return layer.running_mean.double(), layer.running_var.double() * (count - 1) / count


def _moved(name: str, x: Tensor, mask: Tensor, *, given: bool) -> float:
    """How far a norm's results at real tokens, and what it remembers, are from those of the texts without padding."""
    padded, alone = (TEXT_NORMS[name].build((None, None, WIDTH)) for _ in range(2))
    y = padded(x, mask if given else None)[mask]
    if name == "instance":  # each text by itself
        want = torch.cat([alone(row[real][None])[0] for row, real in zip(x, mask, strict=True)])
    else:
        want = alone(x[mask][None])[0]
    memory = zip(padded.buffers(), alone.buffers(), strict=True)
    return max(max_difference(y, want), *(max_difference(one, other) for one, other in memory), 0.0)


def questions(budget: Budget) -> list[Question]:
    def shift(runs: BySeed) -> float:
        return min(float(metrics["usual"]) for metrics in runs.values())

    def masked(runs: BySeed) -> float:
        return max(float(max(row)) for row in runs["normscope"]["with"])

    def alone(runs: BySeed) -> float:
        names = list(TEXT_NORMS)
        return max(float(row[names.index(name)]) for row in runs["normscope"]["without"] for name in ALONE)

    return [
        Question(
            "over a third of padding moves the mean that BatchNorm remembers",
            shift,
            threshold=DIFFERENT,
            unit="standard deviations",
            every_seed=True,
        ),
        Question("with the mask no norm is moved by any share of padding", masked, ROUNDING, "below", every_seed=True),
        Question("LayerNorm, RMSNorm and GroupNorm need no mask for that", alone, ROUNDING, "below", every_seed=True),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    def lines(measured: str, theory: str) -> list[ChartLine]:
        return [
            ChartLine("normscope, no mask", runs.curve("normscope", measured), "a"),
            ChartLine("theory", runs.curve("normscope", theory), "d", dashed=True),
            ChartLine("torch", runs.curve("torch", measured), "b", connected=False),
        ]

    masked = ChartLine("normscope, with the mask", runs.curve("normscope", "masked"), "c", dots=True)
    rows = [metrics["without"][SKEWS.index(USUAL)] for metrics in runs.metrics["normscope"]]
    hidden = [metrics["with"][SKEWS.index(USUAL)] for metrics in runs.metrics["normscope"]]
    share, moved = "share of padding", "moved by, in standard deviations"
    by_norm = [
        ChartLine(
            label, [(at, max(row[at] for row in those)) for at in range(len(TEXT_NORMS))], colour, connected=False
        )
        for label, those, colour in (("no mask", rows, "a"), ("with the mask", hidden, "c"))
    ]
    return [
        Chart("The mean that BatchNorm remembers", share, moved, [*lines("mean", "mean_theory"), masked]),
        Chart("The variance that BatchNorm remembers", share, "padded / real", lines("spread", "spread_theory")),
        Chart("Over a third of padding", "norm", "greatest change", by_norm, categories=list(TEXT_NORMS)),
    ]


CLAIM = Claim(
    number=10,
    name="padding-and-mask",
    kind="exact",
    statement="Padding changes BatchNorm's statistics on a batch of texts, and no norm's once the mask is given.",
    source=(
        "Notes on normalization; Shen et al. 2020, “PowerNorm: Rethinking Batch Normalization in Transformers” (on "
        "BatchNorm's statistics on text)."
    ),
    design=(
        "Embedded bytes of the built-in stories, sixteen texts of different lengths padded to 64 with a token of its "
        "own, against the same texts without padding: what BatchNorm remembers, and every text norm's results at real "
        "tokens, in training."
    ),
    rule=(
        f"Supported if, for every seed, over a third of padding moves BatchNorm's mean by more than {DIFFERENT:g} "
        f"standard deviations, in normscope and in torch, and with the mask no number of any norm moves by "
        f"{ROUNDING:g}, nor without it of those that take each token by itself."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "Give a norm that looks across tokens the mask, or it learns what padding looks like, in proportion to its "
            "share, and what it remembers depends on how texts were batched. A norm of each token by itself needs none."
        ),
        "contradicted": "Either padding does less harm to BatchNorm than is said, or a mask does not keep it out.",
        "inconclusive": "Padding moves the statistics by about as much as chance does.",
    },
    remark="torch's norms take no mask, so there is no line of torch's with it.",
)
