"""First and second derivatives against differences, in float64, with padding and without."""

from typing import Any

import pytest
import torch
from torch import Tensor

import normscope as ns
from tests.blocks.norm.cases import Case, every_case, on_one_path, randn


def _function(norm: ns.Norm, mask: Tensor | None = None) -> Any:
    """The layer as a function of its input and its parameters, for the checker to move about."""
    names = [name for name, _ in norm.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Any:
        inputs = (x,) if mask is None else (x, mask)
        return torch.func.functional_call(norm, dict(zip(names, parameters, strict=True)), inputs)

    return run


def _check(norm: ns.Norm, x: Tensor, mask: Tensor | None = None) -> None:
    inputs = (x.requires_grad_(), *(p.detach().clone().requires_grad_() for p in norm.parameters()))
    for training in (True, False):
        norm.train(training)
        assert torch.autograd.gradcheck(_function(norm, mask), inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(_function(norm, mask), inputs, fast_mode=True)


@on_one_path
@every_case
def test_gradients_of_both_orders(case: Case) -> None:
    ours, _ = case.pair(torch.float64)
    _check(ours, randn(case.shape, seed=3))


MASKED = [
    ns.LayerNorm(4, dtype=torch.float64),
    ns.RMSNorm(4, dtype=torch.float64),
    ns.Norm("[b s] d", state="running", affine="d", d=4, dtype=torch.float64),
    ns.Norm("[b s] d", statistic="rms", state="running", affine="d", d=4, dtype=torch.float64),
    ns.Norm("b [s] d", affine="d", bias=False, d=4, dtype=torch.float64),
    ns.Norm("b [s] (g [d])", affine="(g d)", g=2, d=2, dtype=torch.float64),
]


@on_one_path
@pytest.mark.parametrize("norm", MASKED, ids=repr)
def test_gradients_with_padding(norm: ns.Norm) -> None:
    mask = torch.tensor([[True, True, True], [True, True, False]])
    _check(norm, randn((2, 3, 4), seed=4), mask)
