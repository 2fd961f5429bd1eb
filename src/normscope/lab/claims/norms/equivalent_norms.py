"""GroupNorm, InstanceNorm, LayerNorm and BatchNorm are the same norm where their scopes coincide."""

from typing import Any

import torch
from torch import Tensor

from normscope.lab import toolkit as lab
from normscope.lab.trials.layers import LIBRARIES, max_difference, rms_difference

CHANNELS, SIZE = 12, 6
GROUPS = (1, 2, 3, 4, 6, 12)
BATCHES = (1, 2, 4, 8, 16)
WARMUP_BATCHES = 16
"""Batches that BatchNorm sees before eval mode, equally weighted, so that nothing is left of its initial statistics."""
ROUNDING = 1e-4
"""Of outputs and gradients of size 1 in float32: a hundred times the rounding error, and negligible in practice."""
DIFFERENT = 0.1
"""A tenth of the output's rms: no model would ignore it."""


def variants(budget: lab.Budget) -> lab.Variants:
    return {library: {"library": library} for library in LIBRARIES}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Pass images whose channels differ in mean and spread through pairs of norms with the same gains."""
    library: Any = LIBRARIES[settings["library"]]
    rng = torch.Generator().manual_seed(seed)

    def images(count: int) -> Tensor:
        spread = torch.rand(count, CHANNELS, 1, 1, generator=rng) + 0.5
        mean = torch.randn(count, CHANNELS, 1, 1, generator=rng)
        return spread * torch.randn(count, CHANNELS, SIZE, SIZE, generator=rng) + mean

    x = images(max(BATCHES))
    gain, bias = torch.rand(CHANNELS, generator=rng) + 0.5, torch.randn(CHANNELS, generator=rng)
    weights = torch.randn(x.shape, generator=rng)  # of a loss, for the gradients

    def apply(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Output and input gradient of a layer with these gains; LayerNorm has one gain per pixel."""
        with torch.no_grad():
            for own, value in ((layer.weight, gain), (layer.bias, bias)):
                own.copy_(value.reshape(-1, 1, 1).expand(own.shape) if own.dim() == 3 else value)
        x = x.clone().requires_grad_()
        y = layer(x)
        (y * weights[: len(x)]).sum().backward()
        assert x.grad is not None
        return y, x.grad

    group = {groups: apply(library.GroupNorm(groups, CHANNELS), x) for groups in GROUPS}
    instance = apply(library.InstanceNorm2d(CHANNELS, affine=True), x)
    layer = apply(library.LayerNorm((CHANNELS, SIZE, SIZE)), x)
    in_training, in_eval = [], []
    for size in BATCHES:
        own = instance[0][:size]  # each image is independent, so this holds in any batch
        in_training.append((size, rms_difference(apply(library.BatchNorm2d(CHANNELS), x[:size])[0], own)))
        warmed_up = library.BatchNorm2d(CHANNELS, momentum=None)
        for _ in range(WARMUP_BATCHES):
            warmed_up(images(size))
        in_eval.append((size, rms_difference(apply(warmed_up.eval(), x[:size])[0], own)))
    alone = apply(library.BatchNorm2d(CHANNELS), x[:1])
    its_instance = apply(library.InstanceNorm2d(CHANNELS, affine=True), x[:1])
    between = [group[groups][0] for groups in GROUPS if 1 < groups < CHANNELS]
    return {
        "instance": max(map(max_difference, group[CHANNELS], instance)),
        "layer": max(map(max_difference, group[1], layer)),
        "batch": max(map(max_difference, alone, its_instance)),
        "between": min(rms_difference(y, other) for y in between for other in (instance[0], layer[0])),
        "batch_of_two": dict(in_training)[2],
        "eval": dict(in_eval)[1],
        "from_instance": [(groups, rms_difference(group[groups][0], instance[0])) for groups in GROUPS],
        "from_layer": [(groups, rms_difference(group[groups][0], layer[0])) for groups in GROUPS],
        "batch_from_instance": in_training,
        "memory_from_instance": in_eval,
    }


def questions(budget: lab.Budget) -> list[lab.Question]:
    both = "forward and backward"
    return [
        lab.largest(f"GroupNorm with one group per channel is InstanceNorm, {both}", "instance", ROUNDING),
        lab.largest(f"GroupNorm with one group is LayerNorm over channels and positions, {both}", "layer", ROUNDING),
        lab.largest(f"BatchNorm of one image, in training, is InstanceNorm, {both}", "batch", ROUNDING),
        lab.smallest("with any number of groups in between, GroupNorm is neither", "between", DIFFERENT),
        lab.smallest("BatchNorm of two images is not InstanceNorm", "batch_of_two", DIFFERENT),
        lab.smallest("nor is BatchNorm of one image in eval mode", "eval", DIFFERENT),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    def line(label: str, metric: str, color: str) -> lab.ChartLine:
        return lab.seed_band(label, runs, "normscope", metric, color, dots=True)

    group = [line("to LayerNorm", "from_layer", "a"), line("to InstanceNorm", "from_instance", "b")]
    batch = [line("in training", "batch_from_instance", "a"), line("in eval mode", "memory_from_instance", "b")]
    return [
        lab.Chart(f"Distance of GroupNorm, {CHANNELS} channels", "groups", "difference (rms)", group),
        lab.Chart("Distance of BatchNorm to InstanceNorm", "images in the batch", "difference (rms)", batch),
    ]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
