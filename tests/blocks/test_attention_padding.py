"""Padding in attention: whatever it holds, real tokens neither see it nor learn from it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.blocks.attention import Attention
from normscope.blocks.norm.norm_spec import NormSpec
from tests.blocks.test_attention import FORMS, WIDTH, causal_or_not, every_form, made
from tests.support import close_all, gradients, randn, real_tokens

LENGTHS, SIZE = [6, 3, 1], 6
MASK = real_tokens(LENGTHS, SIZE)
GARBAGE = [1.0, 1e30, float("inf"), float("nan")]


def batch(garbage: float) -> Tensor:
    return randn(3, SIZE, WIDTH).masked_fill(~MASK[..., None], garbage)


def step(attention: Attention, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Output, gradient of the input and of the weights; the loss does not count padding."""
    attention.zero_grad()
    leaf = x.clone().requires_grad_()
    y = attention(leaf, mask)
    ones = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    pull = randn(3, SIZE, WIDTH, seed=1)[-x.shape[0] :, : x.shape[1]]
    y[ones].backward(pull[ones])
    assert leaf.grad is not None
    return y.detach(), leaf.grad, gradients(attention)


@every_form
@causal_or_not
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_changes_nothing(form: str, causal: bool, garbage: float) -> None:
    attention = made(causal=causal, **FORMS[form])
    y, dx, weights = step(attention, batch(0.0), MASK)
    other_y, other_dx, other_weights = step(attention, batch(garbage), MASK)
    assert torch.equal(y[MASK], other_y[MASK])
    assert torch.equal(dx[MASK], other_dx[MASK])
    assert not other_dx[~MASK].any()
    close_all(weights, other_weights, 0.0)
    assert other_y.isfinite().all()


@every_form
@causal_or_not
def test_a_padded_sentence_is_the_sentence_alone(form: str, causal: bool) -> None:
    attention, x = made(causal=causal, **FORMS[form]), batch(50.0)
    y = attention(x, MASK)
    for row, length in enumerate(LENGTHS):
        alone = attention(x[row : row + 1, :length])
        torch.testing.assert_close(y[row : row + 1, :length], alone, rtol=1e-10, atol=1e-12)


def test_a_mask_of_real_tokens_only_changes_nothing() -> None:
    for causal in (True, False):
        attention, x = made(causal=causal), randn(3, SIZE, WIDTH)
        torch.testing.assert_close(attention(x, torch.ones(3, SIZE).bool()), attention(x), rtol=1e-12, atol=1e-12)


def test_a_row_of_padding_alone_stays_finite() -> None:
    mask = MASK.clone()
    mask[2] = False
    y, dx, weights = step(made(), batch(float("nan")), mask)
    assert y.isfinite().all()
    assert dx.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in weights.values())


def test_padding_looks_at_itself() -> None:
    """So it has something to look at in every kernel of torch's; it is zero inside, so all it sees is the bias."""
    attention = made(bias=True)
    y = attention(batch(5.0), torch.zeros(3, SIZE, dtype=torch.bool))
    torch.testing.assert_close(y, attention.out(attention.v.bias).expand_as(y))


@pytest.mark.parametrize("scope", ["b [s] h e", "[b s] h e"])
def test_padding_is_in_no_statistic_of_a_qk_norm(scope: str) -> None:
    options: dict[str, Any] = {"causal": False, "qk_norm": NormSpec(scope, affine=None)}
    attention = made(**options)
    y = attention(batch(0.0), MASK)
    assert torch.equal(y[MASK], attention(batch(7.0), MASK)[MASK])
    first = slice(0, 1)  # one sentence, so that even a statistic over the batch can be had without padding
    alone = attention(batch(0.0)[first, :3])
    mask = real_tokens([3], SIZE)
    torch.testing.assert_close(attention(batch(0.0)[first], mask)[:, :3], alone, rtol=1e-10, atol=1e-12)
