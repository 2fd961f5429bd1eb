"""Weights of transformers' models give the same logits, gradients and texts here."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from normscope.generate.tokens import generate_tokens
from normscope.interop.checkpoint import build_model
from normscope.interop.config_differences import differing_fields
from normscope.interop.huggingface.families import families
from normscope.interop.huggingface.read import gpt_from_huggingface, read_huggingface
from normscope.models.gpt import GPT
from normscope.storage.tensor_spec import TensorSpec
from tests.interop.checkpoints import CONTEXT, FORMS, VOCABULARY, made, stored
from tests.support import random_tokens

TOLERANCE = 3e-5
"""Of the largest value. Measured: at most 3e-6 for logits and 7e-6 for gradients, float32's rounding."""

HEADS = {"gpt_neox": "embed_out.weight"}
QUICK = (
    "gpt2", "llama-3", "llama-yarn", "mistral", "qwen2-window", "qwen3-bias", "olmo2", "gemma2", "gemma3-linear",
    "phi3-part", "smollm3-window", "neox", "neox-sequential",
)  # fmt: skip
TOKENS = random_tokens(VOCABULARY, 2, 24)
every_form = pytest.mark.parametrize(
    "form", [form if form in QUICK else pytest.param(form, marks=pytest.mark.exhaustive) for form in FORMS]
)


def close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max()


def converted(model: Any) -> GPT:
    return gpt_from_huggingface(model.config.to_dict(), stored(model))


@every_form
def test_logits_loss_and_gradients_match(form: str) -> None:
    theirs = made(form)
    ours, targets = converted(theirs), TOKENS.roll(-1, 1)
    wanted = theirs(TOKENS).logits
    assert wanted.abs().max() > 1  # large enough to tell a right model from a wrong one
    close(ours(TOKENS), wanted)
    loss, wanted_loss = ours.loss(TOKENS, targets), F.cross_entropy(wanted.flatten(0, 1), targets.flatten())
    close(loss, wanted_loss)
    loss.backward()
    wanted_loss.backward()
    assert ours.embedding.weight.grad is not None
    close(ours.embedding.weight.grad, theirs.get_input_embeddings().weight.grad)


@every_form
def test_greedy_texts_match(form: str) -> None:
    """Ours reads prompts of two lengths in one batch; theirs reads one at a time. Both use their KV cache."""
    theirs = made(form)
    theirs.generation_config.eos_token_id = None
    prompts = [TOKENS[0, :5], TOKENS[1, :9]]
    ours = generate_tokens(converted(theirs), prompts, max_new_tokens=14, temperature=0.0)
    for prompt, text in zip(prompts, ours, strict=True):
        options = {"max_new_tokens": 14, "do_sample": False, "attention_mask": torch.ones(1, len(prompt))}
        wanted = theirs.generate(prompt[None], **options)
        assert text.tokens == wanted[0, len(prompt) :].tolist()


@every_form
def test_what_is_written_is_read_by_transformers(form: str, tmp_path: Path) -> None:
    theirs = made(form)
    ours = converted(theirs)
    family = families()[theirs.config.model_type]
    assert differing_fields(family.closest(ours.config), ours.config) == []
    written = family.to_theirs(ours.config, ours.state_dict())
    assert {name: TensorSpec.of(tensor) for name, tensor in written.items()} == written.specs
    head = HEADS.get(family.model_type, "lm_head.weight")
    assert {*written, head} == {*stored(theirs), head}
    save_file({name: tensor.contiguous() for name, tensor in written.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(family.write_config(ours.config)))
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        close(again(TOKENS).logits, theirs(TOKENS).logits)
    assert differing_fields(read_huggingface(tmp_path).config, ours.config) == []


@pytest.mark.parametrize("form", [form for form in FORMS if form.startswith("gpt2")])
def test_logits_match_to_rounding_in_float64(form: str) -> None:
    """For GPT-2. transformers has Llama's angles in float32, whatever the weights are in."""
    theirs = made(form)
    ours = converted(theirs).double()
    with torch.no_grad():
        wanted = theirs.double()(TOKENS).logits
        assert (ours(TOKENS) - wanted).abs().max() < 1e-12 * wanted.abs().max()


@pytest.mark.parametrize("form", ["gpt2", "llama-grouped"])
def test_decoding_with_a_cache_matches(form: str) -> None:
    theirs = made(form)
    ours = converted(theirs)
    memory = ours.new_cache(2)
    with torch.no_grad():
        parts = [ours(part, cache=memory) for part in TOKENS.split([20, 1, 3], dim=1)]
        close(torch.cat(parts, dim=1), theirs(TOKENS).logits)


@every_form
def test_a_saved_model_is_loaded_from_its_folder(form: str, tmp_path: Path) -> None:
    theirs = made(form)
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        close(
            build_model(read_huggingface(str(tmp_path) if form == "gpt2" else tmp_path))(TOKENS), theirs(TOKENS).logits
        )


def test_longrope_is_read_up_to_the_original_context(tmp_path: Path) -> None:
    """Beyond it, transformers takes other frequencies."""
    made("phi3-longrope").save_pretrained(tmp_path)
    found = read_huggingface(tmp_path)
    assert found.config.context == CONTEXT
    assert f"the context is {CONTEXT} tokens instead of {4 * CONTEXT}: longer texts have other" in found.notices[0]


@pytest.mark.parametrize("form", ["gpt2", "llama"])
def test_sharded_checkpoints_are_loaded(form: str, tmp_path: Path) -> None:
    theirs = made(form)
    theirs.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    with torch.no_grad():
        close(build_model(read_huggingface(tmp_path))(TOKENS), theirs(TOKENS).logits)


@pytest.mark.parametrize("form", ["gpt2", "llama-tied"])
def test_weights_keep_their_dtype(form: str, tmp_path: Path) -> None:
    theirs = made(form)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.bfloat16())
    # A copy is saved, because transformers rounds its tables of angles along with the weights.
    copy.deepcopy(theirs).to(torch.bfloat16).save_pretrained(tmp_path)
    ours = build_model(read_huggingface(tmp_path))
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        close(ours.float()(TOKENS), theirs(TOKENS).logits)


def test_a_gpt2_without_language_model_head_is_loaded() -> None:
    """GPT2Model saves the same weights under names without the first part, and its head is the embedding."""
    theirs = made("gpt2")
    bare = theirs.transformer.state_dict()
    with torch.no_grad():
        close(gpt_from_huggingface(theirs.config.to_dict(), bare)(TOKENS), theirs(TOKENS).logits)


@pytest.mark.parametrize(
    ("form", "changes", "dropout"),
    [
        ("gpt2", {"resid_pdrop": 0.2}, 0.2),
        ("gpt2", {}, 0.0),
        ("llama", {"attention_dropout": 0.3}, 0.3),
        ("llama", {}, 0.0),
    ],
    ids=str,
)
def test_dropout_is_converted_and_inactive_in_eval_mode(form: str, changes: dict[str, float], dropout: float) -> None:
    """As in transformers, a model that was read is there to be used: training it begins with train()."""
    theirs = made(form, **changes)
    ours = converted(theirs)
    assert ours.config.dropout == dropout
    assert not any(module.training for module in ours.modules())
    with torch.no_grad():
        close(ours(TOKENS), theirs(TOKENS).logits)


def test_buffers_of_older_checkpoints_are_ignored() -> None:
    for form, more in (
        ("gpt2", ("transformer.h.0.attn.bias", "h.1.attn.masked_bias", "lm_head.weight")),
        ("llama", ("model.layers.2.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")),
        ("llama-tied", ("lm_head.weight",)),
    ):
        theirs = made(form)
        weights = theirs.state_dict()
        for name in more:
            weights.setdefault(name, torch.zeros(3))
        ours = gpt_from_huggingface(theirs.config.to_dict(), weights)
        with torch.no_grad():
            close(ours(TOKENS), theirs(TOKENS).logits)


def test_the_model_owns_its_weights() -> None:
    theirs = made("llama")
    ours = converted(theirs)
    before = ours(TOKENS)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    assert torch.equal(ours(TOKENS), before)
    assert all(p.requires_grad for p in ours.parameters())


def test_rope_theta_of_older_files_is_read() -> None:
    theirs = made("llama-base")
    settings = theirs.config.to_dict()
    del settings["rope_parameters"]
    ours = gpt_from_huggingface({**settings, "rope_theta": 500.0}, theirs.state_dict())
    assert ours.config.rotary_base == 500.0
    with torch.no_grad():
        close(ours(TOKENS), theirs(TOKENS).logits)
        other = gpt_from_huggingface(settings, theirs.state_dict())(TOKENS)  # 10000, the default
    assert not torch.isclose(other, ours(TOKENS)).all()
