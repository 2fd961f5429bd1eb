"""Decoder layouts follow every change of the weights, and keep the memory alive that they read."""

import copy
import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from normscope.blocks.linear import Linear
from normscope.blocks.norm.base import Norm
from normscope.generate import decoder
from normscope.generate.config import WeightFormat
from normscope.generate.decoder import Decoder, get_layout
from normscope.generate.tokens import generate_tokens
from normscope.models.gpt import GPT
from normscope.ops.fused import decode_step as decoding
from normscope.ops.norm.statistic import STANDARDIZE
from tests.generate.decoding import decoded, known_layout, relative_error, texts_of
from tests.generate.writers import VOCABULARY, writer

FORMATS: tuple[WeightFormat, ...] = get_args(WeightFormat)
every_format = pytest.mark.parametrize("weights", FORMATS)


def _step(model: GPT) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model.loss(torch.tensor([[1, 2, 3]]), torch.tensor([[2, 3, 4]])).backward()
    optimiser.step()
    model.zero_grad()


def _load(model: GPT, assign: bool = False) -> None:
    model.load_state_dict({name: value + 0.1 for name, value in model.state_dict().items()}, assign=assign)


def _behind_torchs_back(model: GPT) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(1.01)


def _other_memory(model: GPT) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.1


def _there_and_back(model: GPT) -> None:
    with torch.no_grad():
        model.double().embedding.weight.add_(0.2)
    model.float()


def _another_head(model: GPT) -> None:
    model.head = Linear(model.config.width, VOCABULARY, bias=False)


def _turned_otherwise(model: Any) -> None:
    model.blocks[0].attention.rotary.cos.neg_()


def _other_tables(model: Any) -> None:
    for block in model.blocks:
        block.attention.rotary.sin = -block.attention.rotary.sin


def _other_cap(model: GPT) -> None:
    model.config = dataclasses.replace(model.config, logit_cap=0.5)


def _without_a_gain(model: Any) -> None:
    model.final_norm.weight = None


def _other_eps(model: Any) -> None:
    for norm in (model.final_norm, *(norm for block in model.blocks for norm in block.norms)):
        norm.eps = 10.0


def _other_statistic(model: Any) -> None:
    for norm in (model.final_norm, *(norm for block in model.blocks for norm in block.norms)):
        norm.statistic = STANDARDIZE


def _normed_heads(model: Any) -> None:
    for block in model.blocks:
        block.attention.q_norm, block.attention.k_norm = (Norm("b s h [e]") for _ in range(2))


def _normed_embedding(model: Any) -> None:
    model.embedding_norm = Norm("b s [d]", statistic="rms")


CHANGES: dict[str, Callable[[GPT], None]] = {
    "step": _step,
    "load": _load,
    "assign": lambda model: _load(model, assign=True),
    "data": _behind_torchs_back,
    "other-memory": _other_memory,
    "there-and-back": _there_and_back,
    "head": _another_head,
    "rotary": _turned_otherwise,
    "rotary-replaced": _other_tables,
    "cap": _other_cap,
    "gain": _without_a_gain,
    "eps": _other_eps,
    "statistic": _other_statistic,
    "qk-norm": _normed_heads,
    "embedding-norm": _normed_embedding,
}


@every_format
@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_the_model_take_effect(change: str, weights: WeightFormat) -> None:
    model, texts = writer("llama", torch.float32), texts_of([6, 3], VOCABULARY)
    before = decoded(model, texts, weights)
    assert get_layout(model, weights) is get_layout(model, weights)
    CHANGES[change](model)
    found = decoded(model, texts, weights)
    np.testing.assert_array_equal(found, decoded(copy.deepcopy(model), texts, weights))
    assert relative_error(found, before) > 1e-4


@every_format
def test_permuted_weights_take_effect(weights: WeightFormat) -> None:
    """Even where their sums are exact, and so the same in any order."""
    model, texts = writer("llama", torch.float32), texts_of([6, 3], VOCABULARY)
    head: Any = model.head
    head.weight.data.mul_(64).round_()
    before = decoded(model, texts, weights)
    head.weight.data.copy_(head.weight.data.flip(1))
    assert relative_error(decoded(model, texts, weights), before) > 0.1


@every_format
def test_a_new_weight_at_an_old_address_takes_effect(weights: WeightFormat) -> None:
    model, texts = writer("llama", torch.float32), texts_of([4], VOCABULARY)
    found = []
    for i in range(8):
        model.head = Linear(model.config.width, VOCABULARY, bias=False)
        nn.init.constant_(model.head.weight, i + 1)
        found.append(decoded(model, texts, weights)[0, 0, 0] / (i + 1))
    np.testing.assert_allclose(found, found[0], rtol=0.01)


def test_table_fields_are_adjacent() -> None:
    """A matrix is handed over by its first place: its scale and its bias follow it, and a norm's bias its gain."""
    places = {name: value for name, value in vars(decoding).items() if name.isupper() and isinstance(value, int)}
    matrices = {name.removesuffix("_SCALE") for name in places if name.endswith("_SCALE")}
    norms = {name.removesuffix("_BIAS") for name in places if name.endswith("_BIAS")} - matrices
    assert matrices == {"Q", "K", "V", "OUT", "UP", "GATE", "DOWN", "HEAD"}
    assert norms == {"NORM1", "NORM2", "Q_NORM", "K_NORM", "INPUT_NORM", "FINAL_NORM"}
    for name in matrices:
        assert (places[f"{name}_SCALE"], places[f"{name}_BIAS"]) == (places[name] + 1, places[name] + 2)
    for name in norms:
        assert places[f"{name}_BIAS"] == places[name] + 1


def test_a_layout_keeps_its_tensors_alive() -> None:
    """A model that goes elsewhere between two tokens leaves its old memory behind."""
    model, (text,) = writer("llama", torch.float32, width=64, hidden=300), texts_of([6], VOCABULARY)
    wanted = decoded(model, [text], together=6)[:, 0]
    reading = Decoder(known_layout(model), model.new_cache(1))
    found = [reading.advance(text[:1])[0].copy()]
    sizes = [parameter.numel() for parameter in model.parameters()]
    model.double()
    others = [torch.full((size,), torch.nan) for size in sizes]  # would be given what was let go of
    found += [reading.advance([token])[0].copy() for token in text[1:]]
    np.testing.assert_array_equal(np.stack(found), wanted)
    assert len(others) == len(sizes)


def test_an_old_layout_does_not_keep_moved_weights_alive() -> None:
    model = writer("llama", torch.float32)
    generate_tokens(model, [[1]], max_new_tokens=2)
    assert model in decoder._layouts
    generate_tokens(model.double(), [[1]], max_new_tokens=2)
    assert model not in decoder._layouts


@every_format
def test_an_unused_model_is_garbage_collected(weights: WeightFormat) -> None:
    model = writer("llama", torch.float32)
    generate_tokens(model, [[1, 2]], max_new_tokens=3, weights=weights)
    layout, ends = weakref.ref(decoder._layouts[model]), weakref.ref(model)
    assert ends() is not None
    del model
    gc.collect()
    assert ends() is None
    assert layout() is None


def test_a_model_created_in_inference_mode() -> None:
    with torch.inference_mode():
        model = writer("llama", torch.float32)
    texts = texts_of([6, 3], VOCABULARY)
    for weights in FORMATS:
        found = decoded(model, texts, weights)
        np.testing.assert_array_equal(found, decoded(writer("llama", torch.float32), texts, weights))
    with torch.inference_mode():
        model.head.weight.mul_(2)  # type: ignore[union-attr]
    assert relative_error(decoded(model, texts, "int8"), found) > 0.5
