"""Attention maps: proportions of the values, from which every attention layer's output follows."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope import attention_maps
from normscope.blocks.attention import Attention
from normscope.errors import ConfigError, ShapeError
from normscope.models.gpt import GPT
from tests.inspection.gpts import CONTEXT, FORMS, VOCABULARY, made
from tests.support import random_tokens, real_tokens

ANY: Any = attention_maps


def calls(model: GPT, tokens: Tensor, mask: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """The input and output of each attention layer."""
    seen: list[tuple[Tensor, Tensor]] = []

    def note(module: nn.Module, inputs: Any, output: Tensor) -> None:
        seen.append((inputs[0], output))

    hooks = [block.attention.register_forward_hook(note) for block in model.blocks]  # type: ignore[union-attr]
    model.eval()(tokens, mask=mask)
    for hook in hooks:
        hook.remove()
    return seen


def from_map(attention: Attention, weights: Tensor, x: Tensor) -> Tensor:
    """The output of attention as its definition has it: each head adds up its values by the weights of the map."""
    v = attention.v(x).unflatten(-1, (attention.kv_heads, attention.head_dim))
    group = attention.heads // attention.kv_heads
    heads = [torch.einsum("bst,bte->bse", weights[:, h], v[:, :, h // group]) for h in range(attention.heads)]
    y: Tensor = attention.out(torch.cat(heads, dim=-1))
    return y


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_the_output_of_attention_follows_from_the_map(form: str, padded: bool) -> None:
    model, tokens = made(form), random_tokens(VOCABULARY, 2, 9)
    mask = real_tokens([9, 5], 9) if padded else None
    maps = attention_maps(model, tokens, mask=mask)
    assert maps.shape == (3, 2, 4, 9, 9)
    torch.testing.assert_close(maps.sum(-1), torch.ones(3, 2, 4, 9, dtype=torch.float64))
    for block, weights, (x, y) in zip(model.blocks, maps, calls(model, tokens, mask), strict=True):
        x = x if mask is None else x.where(mask[:, :, None], 0.0)
        wanted = from_map(block.attention, weights, x)  # type: ignore[arg-type]
        torch.testing.assert_close(y, wanted, rtol=1e-10, atol=1e-10)


def test_nobody_attends_to_the_future_nor_beyond_the_window_nor_to_padding() -> None:
    tokens, mask = random_tokens(VOCABULARY, 2, 9), real_tokens([9, 5], 9)
    maps = attention_maps(made("window"), tokens, mask=mask)
    query, key = torch.arange(9)[:, None], torch.arange(9)
    visible = (key <= query) & (query - key < 3)
    assert (maps[:, 0] > 0).equal(visible.expand(3, 4, 9, 9))
    assert (maps[:, 1, :, :5] > 0).equal((visible[:5] & (key < 5)).expand(3, 4, 5, 9))


def test_the_model_stays_as_it_was() -> None:
    model, tokens = made("dropout").train(), random_tokens(VOCABULARY, 1, 5)
    before = torch.get_rng_state()
    maps = attention_maps(model, tokens)
    assert torch.equal(maps, attention_maps(model, tokens))  # no dropout
    assert all(module.training for module in model.modules())
    assert torch.equal(before, torch.get_rng_state())
    maps.requires_grad_().sum().backward()  # an ordinary tensor


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="model must be a GPT"):
        ANY(nn.Linear(2, 2), torch.tensor([[1]]))
    with pytest.raises(ShapeError, match="exceed the model's context"):
        attention_maps(made("pre"), random_tokens(VOCABULARY, 1, CONTEXT + 1))
