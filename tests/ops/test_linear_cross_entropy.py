"""The loss from chunks of logits equals that from all of them, with its gradients."""

import pytest
import torch
from torch import Tensor

from normscope.models.gpt import GPT
from normscope.models.presets import gpt2, nanochat
from normscope.ops import linear_cross_entropy as chunked
from normscope.ops.cross_entropy import cross_entropy
from normscope.ops.linear_cross_entropy import linear_cross_entropy


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "CHUNK", 3 * 11)  # three rows
    monkeypatch.setattr(chunked, "LARGE", 0)


def losses(x: Tensor, weight: Tensor, targets: Tensor, cap: float | None) -> list[list[Tensor]]:
    found = []
    for in_chunks in (True, False):
        leaves = [tensor.clone().requires_grad_() for tensor in (x, weight)]
        inputs, table = leaves
        whole = cross_entropy(inputs @ table.T, targets, cap)
        loss = linear_cross_entropy(inputs, table, targets, cap) if in_chunks else whole
        (2 * loss).backward()
        found.append([loss.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    return found


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_equals_the_loss_of_all_logits(cap: float | None, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(10, 6, dtype=dtype), torch.randn(11, 6, dtype=dtype)
    targets = torch.randint(11, (10,))
    targets[[1, 3, 4, 5]] = -1  # the second chunk has no target
    one, other = losses(x, weight, targets, cap)
    for found, expected in zip(one, other, strict=True):
        torch.testing.assert_close(found, expected)


def test_without_any_target_the_loss_is_nan_as_before() -> None:
    assert linear_cross_entropy(torch.ones(2, 3), torch.ones(4, 3), torch.full((2,), -1)).isnan()


@pytest.mark.parametrize("preset", [gpt2, nanochat])
def test_a_model_uses_it_if_nothing_watches_the_logits(preset: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(preset)
    torch.manual_seed(0)
    model = GPT(preset(vocab_size=11, context=8, depth=1, width=16, heads=2))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    tokens = torch.randint(11, (2, 8))
    loss = model.loss(tokens, tokens)
    (gradient,) = torch.autograd.grad(loss, [model.embedding.weight])
    seen: list[int] = []
    handle = model.register_forward_hook(lambda *_: seen.append(1))
    watched = model.loss(tokens, tokens)
    handle.remove()
    assert seen == [1]
    torch.testing.assert_close(loss, watched)
    torch.testing.assert_close(gradient, torch.autograd.grad(watched, [model.embedding.weight])[0])
    with pytest.raises(Exception, match="token"):
        model.loss(tokens, tokens + 10)


def test_frozen_weights_get_no_gradient_product() -> None:
    x, weight = torch.randn(5, 3, requires_grad=True), torch.randn(11, 3)
    linear_cross_entropy(x, weight, torch.arange(5)).backward()
    assert x.grad is not None
    assert weight.grad is None
