"""The residual lens: the last row is the model, and the row after i blocks is the model that ends there."""

from typing import Any

import pytest
import torch
from torch import nn

from normscope import logit_lens
from normscope.errors import ConfigError
from tests.inspection.gpts import FORMS, VOCABULARY, made
from tests.pairs import every_value
from tests.support import random_tokens, real_tokens

ANY: Any = logit_lens


@every_value(form=list(FORMS), padded={"whole": False, "padded": True})
def test_each_row_is_the_model_cut_off_after_so_many_blocks(form: str, padded: bool) -> None:
    model, tokens = made(form).eval(), random_tokens(VOCABULARY, 2, 9)
    mask = real_tokens([9, 5], 9) if padded else None
    lens = logit_lens(model, tokens, mask=mask)
    assert lens.shape == (4, 2, 9, VOCABULARY)
    assert torch.equal(lens[-1], model(tokens, mask=mask))
    for blocks in range(3):
        shorter = made(form).eval()
        del shorter.blocks[blocks:]
        assert torch.equal(lens[blocks], shorter(tokens, mask=mask))


def test_the_last_position_only_and_without_the_cap() -> None:
    model, tokens = made("logit-cap").eval(), random_tokens(VOCABULARY, 2, 9)
    lens = logit_lens(model, tokens)
    torch.testing.assert_close(logit_lens(model, tokens, last_only=True), lens[:, :, -1:])
    assert lens.abs().max() < 2.0 < logit_lens(model, tokens, capped=False).abs().max()


def test_the_model_stays_as_it_was() -> None:
    model, tokens = made("dropout").train(), random_tokens(VOCABULARY, 1, 5)
    lens = logit_lens(model, tokens)
    assert torch.equal(lens, logit_lens(model, tokens))  # no dropout
    assert all(module.training for module in model.modules())


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="model must be a GPT"):
        ANY(nn.Linear(2, 2), torch.tensor([[1]]))
