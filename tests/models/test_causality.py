"""Which norms leak the future in a causal model: the rule matches what a probe finds."""

import copy
import dataclasses
from typing import Any

import pytest
import torch

from normscope.blocks.norm.norm_spec import TEXT_NORMS, NormSpec
from normscope.errors import FutureLeakError
from normscope.models.gpt import GPT
from tests.models.tiny import CONTEXT, VOCABULARY, tiny
from tests.support import random_tokens, scramble

TOKENS = random_tokens(VOCABULARY, 3, CONTEXT)
NORMS = {
    **TEXT_NORMS,
    "power-warm": dataclasses.replace(TEXT_NORMS["power"], warmup=2),
    "sentence": NormSpec("b [s d]", affine=None),
    "across": NormSpec("[b] s d", state=None, affine=None),
}
every_norm = pytest.mark.parametrize("norm", NORMS)


def model_with(**options: Any) -> GPT:
    model = GPT(tiny("llama", init="gpt2", allow_future_leak=True, **options)).double()
    scramble(model, scale=0.5)
    model(TOKENS)  # so that those with a memory have one that is not all ones
    return model


def leaks(model: GPT, place: int = 6) -> bool:
    """Whether in training the logits before a place move with the tokens from there on."""
    changed = TOKENS.clone()
    changed[:, place:] = (changed[:, place:] + 5) % VOCABULARY
    with torch.no_grad():
        # Of two twins, for a norm with a memory is another one after a call.
        before, after = copy.deepcopy(model).train()(TOKENS), copy.deepcopy(model).train()(changed)
    assert (before[:, place:] - after[:, place:]).abs().max() > 1e-3  # the probe does something
    moved: float = (before[:, :place] - after[:, :place]).abs().max().item()
    assert moved < 1e-12 or moved > 1e-6
    return moved > 1e-6


@every_norm
def test_a_norm_leaks_if_and_only_if_it_says_so(norm: str) -> None:
    spec = NORMS[norm]
    assert leaks(model_with(norm=spec)) == spec.mixes_along(1, 3)


@every_norm
def test_only_leaking_norms_are_refused(norm: str) -> None:
    spec = NORMS[norm]
    if spec.mixes_along(1, 3):
        with pytest.raises(FutureLeakError, match="brackets the token axis"):
            tiny("llama", norm=spec)
    else:
        assert tiny("llama", norm=spec).norm == spec


def test_cases_cover_leaking_and_safe_norms() -> None:
    assert {name for name, spec in NORMS.items() if spec.mixes_along(1, 3)} == {
        "instance",
        "batch",
        "power-warm",
        "sentence",
    }


@pytest.mark.parametrize("scope", ["[b s] h e", "b [s] h e", "b s [h e]"])
def test_a_qk_norm_leaks_if_and_only_if_it_says_so(scope: str) -> None:
    spec = NormSpec(scope, affine=None)
    assert leaks(model_with(qk_norm=spec)) == spec.mixes_along(1, 4)
