"""Find the first layer that an exported model computes differently, when its tool shows only logits.

The same writer exports probes: copies of the model in which the branches from some layer on add nothing to the
residual stream. The first probe that differs names the layer.
"""

import copy
from collections.abc import Callable, Sequence

import torch

from normscope.blocks.block import Block
from normscope.models.gpt import GPT

Differs = Callable[[GPT], bool]
"""Export a model, run it, and compare its logits."""

ENDS = "embedding, final norm or head"
_AFTER = {
    "pre": None,
    "parallel": None,
    "parallel-2": None,
    "sandwich": {"attention": 1, "mlp": 3},
    "branch": {"attention": 0, "mlp": 1},
}
"""Wirings in which a branch of zeros changes nothing, and the norm after each branch."""


def first_difference(model: GPT, differs: Differs) -> str | None:
    """Return the name of the first layer that differs; None if it cannot be found.

    Args:
        model: the model.
        differs: exports a model and returns whether the export differs.
    """
    if model.config.wiring not in _AFTER:
        return None
    layers = [f"blocks.{i}.{branch}" for i in range(model.config.depth) for branch in ("attention", "mlp")]
    if differs(silence(model, layers)):
        return ENDS
    low, high = 0, len(layers)  # the probe with the first `low` layers is equal, the one with `high` differs
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(silence(model, layers[middle:])) else (middle, high)
    return layers[high - 1]


@torch.no_grad()
def silence(model: GPT, layers: Sequence[str]) -> GPT:
    """Return a copy in which these branches, such as "blocks.0.mlp", add zero."""
    probe = copy.deepcopy(model)
    after = _AFTER[model.config.wiring]
    for layer in layers:
        _, index, branch = layer.split(".")
        block = probe.blocks[int(index)]
        assert isinstance(block, Block)
        last = block.attention.out if branch == "attention" else block.mlp.down
        silent = [last] if after is None else [last, block.norms[after[branch]]]
        for parameter in (one for module in silent for one in module.parameters()):
            parameter.zero_()
    return probe
