"""Forward passes that are run twice to save memory (activation checkpointing), or kept apart from the gradients."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import normscope as ns
from normscope.errors import TransformError
from tests.blocks.norm.cases import close, randn, scramble

NORMS = {"layer": ns.LayerNorm(4), "rms": ns.RMSNorm(4), "power": ns.PowerNorm(4)}


def _step(norm: nn.Module, x: Tensor, recompute: bool) -> Tensor:
    leaf = x.clone().requires_grad_()
    y = checkpoint(norm, leaf, use_reentrant=False) if recompute else norm(leaf)
    assert isinstance(y, Tensor)
    y.backward(randn(tuple(x.shape), 3, x.dtype))
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("name", NORMS)
def test_a_recomputed_forward_changes_nothing(name: str) -> None:
    results = []
    for recompute in (False, True):
        norm = type(NORMS[name])(4, dtype=torch.float64)  # type: ignore[arg-type]
        scramble(norm)
        gradients = [_step(norm, randn((2, 3, 4), seed), recompute) for seed in range(3)]
        results.append((gradients, dict(norm.named_buffers())))
    (plain, buffers), (again, buffers_again) = results
    for one, other in zip(plain, again, strict=True):
        close(one, other, 1e-12, "gradient of the input")
    for key, value in buffers.items():
        close(value, buffers_again[key], 1e-12, key)


def test_power_remembers_a_batch_that_has_no_backward_pass() -> None:
    x = randn((2, 3, 4), 1)
    with_gradient, without = ns.PowerNorm(4, dtype=torch.float64), ns.PowerNorm(4, dtype=torch.float64)
    _step(with_gradient, x, recompute=False)
    with torch.no_grad():
        without(x)
    assert with_gradient.running_square is not None
    close(with_gradient.running_square, without.running_square, 1e-12, "psi squared")
    assert with_gradient.num_batches_tracked == without.num_batches_tracked == 1


def test_power_before_its_backward_pass_has_not_moved() -> None:
    norm = ns.PowerNorm(4, dtype=torch.float64)
    y = norm(randn((2, 3, 4), 1).requires_grad_())
    assert norm.running_square is not None
    assert norm.running_square.tolist() == [1.0] * 4
    y.sum().backward()
    assert norm.running_square.ne(1.0).all()


def test_power_refuses_reentrant_checkpointing() -> None:
    """Its first forward pass looks like one without a backward pass, so the statistics would move twice."""
    norm, x = ns.PowerNorm(4), randn((2, 3, 4), 1, torch.float32).requires_grad_()
    y = checkpoint(norm, x, use_reentrant=True)
    assert isinstance(y, Tensor)
    with pytest.raises(TransformError, match="use_reentrant=False"):
        y.sum().backward()
