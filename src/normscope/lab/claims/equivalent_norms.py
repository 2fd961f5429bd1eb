"""GroupNorm, InstanceNorm, LayerNorm and BatchNorm are one norm where their scopes are one."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.report.charts import OF_SEEDS
from normscope.lab.trials.layers import LIBRARIES, max_difference, rms_difference
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import Chart, ChartLine

CHANNELS, SIZE = 12, 6
GROUPS = (1, 2, 3, 4, 6, 12)
BATCHES = (1, 2, 4, 8, 16)
REMEMBERED = 16
"""Batches that BatchNorm has seen before eval mode, all of the same weight, so that nothing is left of its start."""
ROUNDING = 1e-4
"""Of outputs and gradients of size 1, in float32: a hundred times what its rounding does, and far below any use."""
DIFFERENT = 0.1
"""A tenth of the output's size: what no model would take for the same."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {library: {"library": library} for library in LIBRARIES}


def measure(settings: Settings, seed: int) -> Metrics:
    """Pictures whose channels differ in mean and spread through two norms with the same gains, forward and backward."""
    library: Any = LIBRARIES[settings["library"]]
    chance = torch.Generator().manual_seed(seed)

    def pictures(many: int) -> Tensor:
        spread = torch.rand(many, CHANNELS, 1, 1, generator=chance) + 0.5
        mean = torch.randn(many, CHANNELS, 1, 1, generator=chance)
        return spread * torch.randn(many, CHANNELS, SIZE, SIZE, generator=chance) + mean

    x = pictures(max(BATCHES))
    gain, bias = torch.rand(CHANNELS, generator=chance) + 0.5, torch.randn(CHANNELS, generator=chance)
    weights = torch.randn(x.shape, generator=chance)  # of a loss, for the gradients

    def given(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Output and gradient of a layer with these gains; LayerNorm has a gain for every pixel."""
        with torch.no_grad():
            for own, value in ((layer.weight, gain), (layer.bias, bias)):
                own.copy_(value.reshape(-1, 1, 1).expand(own.shape) if own.dim() == 3 else value)
        x = x.clone().requires_grad_()
        y = layer(x)
        (y * weights[: len(x)]).sum().backward()
        assert x.grad is not None
        return y, x.grad

    group = {groups: given(library.GroupNorm(groups, CHANNELS), x) for groups in GROUPS}
    instance = given(library.InstanceNorm2d(CHANNELS, affine=True), x)
    layer = given(library.LayerNorm((CHANNELS, SIZE, SIZE)), x)
    from_batch, from_memory = [], []
    for size in BATCHES:
        own = instance[0][:size]  # each picture by itself, so in any batch
        from_batch.append((size, rms_difference(given(library.BatchNorm2d(CHANNELS), x[:size])[0], own)))
        remembering = library.BatchNorm2d(CHANNELS, momentum=None)
        for _ in range(REMEMBERED):
            remembering(pictures(size))
        from_memory.append((size, rms_difference(given(remembering.eval(), x[:size])[0], own)))
    alone = given(library.BatchNorm2d(CHANNELS), x[:1])
    its_instance = given(library.InstanceNorm2d(CHANNELS, affine=True), x[:1])
    between = [groups for groups in GROUPS if 1 < groups < CHANNELS]
    return {
        "instance": max(map(max_difference, group[CHANNELS], instance)),
        "layer": max(map(max_difference, group[1], layer)),
        "batch": max(map(max_difference, alone, its_instance)),
        "between": min(
            rms_difference(group[groups][0], other) for groups in between for other in (instance[0], layer[0])
        ),
        "batch_of_two": dict(from_batch)[2],
        "eval": dict(from_memory)[1],
        "from_instance": [(groups, rms_difference(group[groups][0], instance[0])) for groups in GROUPS],
        "from_layer": [(groups, rms_difference(group[groups][0], layer[0])) for groups in GROUPS],
        "batch_from_instance": from_batch,
        "memory_from_instance": from_memory,
    }


def questions(budget: Budget) -> list[Question]:
    def same(metric: str, text: str) -> Question:
        def effect(runs: BySeed) -> float:
            return max(float(metrics[metric]) for metrics in runs.values())

        return Question(f"{text}, forward and backward", effect, threshold=ROUNDING, side="below", every_seed=True)

    def different(metric: str, text: str) -> Question:
        def effect(runs: BySeed) -> float:
            return min(float(metrics[metric]) for metrics in runs.values())

        return Question(text, effect, threshold=DIFFERENT, side="above", every_seed=True)

    return [
        same("instance", "GroupNorm with a group for each channel is InstanceNorm"),
        same("layer", "GroupNorm with one group is LayerNorm over channels and positions"),
        same("batch", "BatchNorm of one picture, in training, is InstanceNorm"),
        different("between", "with any number of groups in between, GroupNorm is neither"),
        different("batch_of_two", "BatchNorm of two pictures is not InstanceNorm"),
        different("eval", "nor is BatchNorm of one picture in eval mode"),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    def lines(named: Mapping[str, str]) -> list[ChartLine]:
        return [
            ChartLine(
                label,
                runs.curve("normscope", metric),
                colour,
                dots=True,
                interval=runs.band("normscope", metric),
                interval_label=OF_SEEDS,
            )
            for (label, metric), colour in zip(named.items(), "ab", strict=True)
        ]

    group = {"to LayerNorm": "from_layer", "to InstanceNorm": "from_instance"}
    batch = {"in training": "batch_from_instance", "in eval mode": "memory_from_instance"}
    return [
        Chart(f"GroupNorm of {CHANNELS} channels: how far it is", "groups", "difference (rms)", lines(group)),
        Chart("BatchNorm: how far it is to InstanceNorm", "pictures in the batch", "difference (rms)", lines(batch)),
    ]


CLAIM = Claim(
    number=7,
    name="equivalent-norms",
    kind="exact",
    statement=(
        "GroupNorm with as many groups as channels is InstanceNorm, and with one group LayerNorm over c h w; BatchNorm "
        "of a single picture is, in training, InstanceNorm."
    ),
    source="Notes on normalization; Wu and He 2018, “Group Normalization”.",
    design=(
        "Random pictures whose channels differ in mean and spread, through normscope's layers and torch's, in "
        "float32, with the same random gains and biases; outputs and the gradients that come back are compared. For "
        f"eval mode, BatchNorm has seen {REMEMBERED} batches of other pictures, and remembers the mean of their "
        "statistics (momentum=None)."
    ),
    rule=(
        f"Supported if, for every seed and in both libraries, no number of the pairs differs by {ROUNDING:g}, and all "
        f"other pairs differ by more than {DIFFERENT:g} of the output's size."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "The four norms are one formula over different scopes. Choose the scope: a GroupNorm covers the range from "
            "LayerNorm to InstanceNorm with one number. BatchNorm trained on single pictures learns as InstanceNorm "
            "and then predicts as something else, because in eval mode it takes its memory."
        ),
        "contradicted": "At least one pair is not what it is said to be: do not replace one layer by the other there.",
        "inconclusive": "The differences are too close to rounding to tell.",
    },
    remark=(
        "The notes' formula for GroupNorm has a gain for each group; the layers of both libraries, the paper and the "
        "notes' own text have one for each channel. LayerNorm has one for every pixel, so it is GroupNorm of one group "
        "only as long as those of a channel are equal, as they are at the start."
    ),
    revised="a part of its design",
)
