"""Tests that depend on the instruction set and compile one kernel: rows forward. Run by test_portability.py."""

from typing import Any

import pytest
import torch
from torch import nn

import normscope as ns
from tests.accuracy import assert_no_less_accurate
from tests.blocks.norm.cases import randn
from tests.ops.norm.test_row_norm import HARD, equal_layers

LAYERS = {"layer": (ns.LayerNorm, nn.LayerNorm), "rms": (ns.RMSNorm, nn.RMSNorm)}


@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("width", [96, 768])
@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_outputs_are_no_less_accurate_than_torchs(layers: tuple[Any, Any], width: int, hard: str) -> None:
    ours, theirs, exact = equal_layers(*layers, width)
    x = HARD[hard](randn((300, width), 3)).float()
    # With gradients to come, as in training: without them, torch normalizes a few rows.
    assert_no_less_accurate(ours(x).detach(), theirs(x).detach(), exact(x.double()).detach())


@pytest.mark.parametrize("layer", [ns.LayerNorm, ns.RMSNorm])
def test_threads_do_not_change_a_bit(layer: Any) -> None:
    norm, x = layer(96), randn((700, 96), 1, torch.float32)
    single = norm(x)
    torch.set_num_threads(2)
    many = norm(x)
    torch.set_num_threads(1)
    assert torch.equal(single, many)
