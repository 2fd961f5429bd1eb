"""last_only returns the logits of the last position; dropout is applied after the embedding."""

import pytest
import torch
from torch import Tensor

from normscope.models.gpt import GPT
from tests.models.tiny import CONTEXT, VOCABULARY, every_form, made, tiny
from tests.support import random_tokens, real_tokens, scramble

TOKENS = random_tokens(VOCABULARY, 3, CONTEXT)


@every_form
def test_last_only_gives_the_last_logits(form: str) -> None:
    model = made(form, torch.float64)
    last = model(TOKENS, last_only=True)
    assert last.shape == (3, 1, VOCABULARY)
    torch.testing.assert_close(last, model(TOKENS)[:, -1:], rtol=1e-12, atol=1e-12)


@every_form
def test_last_only_with_a_mask(form: str) -> None:
    """Of the last column as it stands, even where that is padding."""
    model, mask = made(form, torch.float64), real_tokens([CONTEXT, 4, 1], CONTEXT)
    torch.testing.assert_close(model(TOKENS, mask=mask, last_only=True), model(TOKENS, mask=mask)[:, -1:])


@every_form
def test_last_only_with_a_cache(form: str) -> None:
    model = made(form, torch.float64)
    memory = model.new_cache(3)
    with torch.no_grad():
        logits = model(TOKENS)
        for stop, part in ((6, TOKENS[:, :6]), (7, TOKENS[:, 6:7]), (CONTEXT, TOKENS[:, 7:])):
            last = model(part, cache=memory, last_only=True)
            torch.testing.assert_close(last, logits[:, stop - 1 : stop], rtol=1e-9, atol=1e-9)


def test_a_final_norm_across_tokens_sees_all_of_them() -> None:
    model = GPT(tiny("llama", norm="instance", allow_future_leak=True)).double()
    scramble(model)
    torch.testing.assert_close(model(TOKENS, last_only=True), model(TOKENS)[:, -1:])


def test_the_head_gets_one_position() -> None:
    model = made("llama")
    assert model.head is not None
    seen: list[torch.Size] = []
    model.head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape))
    model(TOKENS, last_only=True)
    assert seen == [(3, 1, 16)]


def test_last_only_without_tokens() -> None:
    assert made("llama")(TOKENS[:, :0], last_only=True).shape == (3, 0, VOCABULARY)


@pytest.mark.parametrize("name", ["gpt2", "nanochat"])
def test_dropout_is_applied_before_the_embedding_norm(name: str) -> None:
    model = GPT(tiny(name, dropout=0.5))
    scramble(model)
    seen: list[Tensor] = []
    model.embedding_norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model(TOKENS)
    model.eval()(TOKENS)
    dropped, whole = seen
    gone = dropped == 0
    assert 0.3 < gone.double().mean().item() < 0.7
    torch.testing.assert_close(dropped[~gone], 2 * whole[~gone])
    wanted = model.embedding(TOKENS)
    if model.position is not None:
        wanted = wanted + model.position.weight[:CONTEXT]
    torch.testing.assert_close(whole, wanted)
