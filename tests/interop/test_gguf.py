"""GGUF files give the logits of the model that they were converted from; what is not supported is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from gguf import GGMLQuantizationType as QuantizationType

from normscope.errors import WeightsError
from normscope.interop.checkpoint import build_model
from normscope.interop.gguf.read import read_gguf
from tests.interop import gguf_files
from tests.interop.checkpoints import made
from tests.interop.gguf_files import add_vocabulary, write_model

TOKENS = torch.tensor([[5, 17, 3, 96, 42, 42, 7, 0, 61, 9, 33, 80]])
"""Longer than the sliding windows."""
LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "llama": ("llama-grouped", {}),
    "llama with a head size": ("llama-head-size", {}),
    "llama with biases": ("llama-biases", {}),
    "llama with a tied head": ("llama-tied", {}),
    "llama with linear scaling": ("llama-linear", {}),
    "llama 3.1": ("llama-3", {"rope_parameters": LLAMA_3}),
    "mistral": ("mistral-no-window", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 10}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 10, "num_hidden_layers": 7}),
    "phi3": ("phi3", {}),
    "phi3 with a window": ("phi3-window", {}),
    "phi3 with partial rotary embeddings": ("phi3-part", {}),
    "olmo2": ("olmo2", {}),
    "neox": ("neox", {}),
    "neox, sequential": ("neox-sequential", {}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 4, "num_hidden_layers": 5}),
}
QUICK = ("gpt2", "llama", "gemma2", "neox")


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found = model(TOKENS)
    return found if isinstance(found, torch.Tensor) else found.logits


@pytest.mark.parametrize(
    "form", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.exhaustive) for name in FORMS]
)
def test_the_same_logits_as_the_model_that_was_converted(tmp_path: Path, form: str) -> None:
    name, changes = FORMS[form]
    theirs = made(name, **changes)
    write_model(tmp_path / "model.gguf", theirs)
    checkpoint = read_gguf(tmp_path / "model.gguf")
    expected = logits_of(theirs)
    assert (logits_of(build_model(checkpoint)) - expected).abs().max() < 1e-5 * expected.abs().max() + 1e-4
    assert checkpoint.chat_template == "{{ messages }}"
    assert checkpoint.tokenizer is not None


@pytest.mark.parametrize("kind", [QuantizationType.F16, QuantizationType.BF16, QuantizationType.Q8_0])
def test_weights_have_one_dtype_that_holds_all_of_them(tmp_path: Path, kind: QuantizationType) -> None:
    """Norms are float32 in GGUF files, also beside float16."""
    dtype = {QuantizationType.F16: torch.float16, QuantizationType.BF16: torch.bfloat16}.get(kind, torch.float32)
    theirs = made("llama", hidden_size=64, num_attention_heads=4, intermediate_size=96)
    path = tmp_path / "model.gguf"
    write_model(path, theirs.to(dtype), kind)
    weights = read_gguf(path).weights
    assert {weights[name].dtype for name in weights} == {dtype}
    assert torch.equal(weights["final_norm.weight"], theirs.model.norm.weight)
    with torch.no_grad():
        theirs.float().model.norm.weight[0] = 1 + 2**-20  # neither float16 nor bfloat16
    write_model(path, theirs, kind)
    weights = read_gguf(path).weights
    assert {weights[name].dtype for name in weights} == {torch.float32}
    assert torch.equal(weights["final_norm.weight"], theirs.model.norm.weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_count": 8}, "unsupported metadata expert_count=8"),
        ({"attention__sliding_window": 16}, "unsupported metadata attention.sliding_window=16"),
        ({"rope__scaling__type": "yarn"}, "unsupported metadata rope.scaling.type='yarn': expected none or linear"),
        ({"attention__value_length": 4}, "unsupported metadata attention.value_length=4: expected 8"),
        ({"rope__dimension_count": 4}, "unsupported metadata rope.dimension_count=4: expected 8"),
        ({"attention__head_count": [6, 3, 6]}, "unsupported metadata attention.head_count=.6, 3, 6.: expected a pos"),
        ({"attention__head_count": 0}, "unsupported metadata attention.head_count=0"),
        ({"block_count": None}, "has no llama.block_count in its metadata"),
        ({"block_count": 4}, "has no 'blk.3."),
        ({"block_count": 2**31}, "unsupported metadata block_count=2,147,483,648 with 30 tensors"),
        ({"rope__freq_base": 0.0}, "rotary_base"),
        ({"attention__key_length": 2**31}, "attention.value_length=8: expected 2147483648"),
        ({"block_count": 2}, "weights not used by the model"),
        ({"embedding_length": 96}, "of .97, 48., but .* needs floating-point .97, 96."),
        ({"context_length": "long"}, "context"),
        ({"feed_forward_length": 2**31}, "blk.0.ffn"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, made("llama"), **changes)
    with pytest.raises(WeightsError, match=message) as refused:
        read_gguf(path)
    assert "model.gguf" in str(refused.value)
    assert "\nfix: " in str(refused.value)


def test_an_absurd_context_is_refused_before_its_tables_are_computed(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf", made("llama"), context_length=50_000_000)
    with pytest.raises(WeightsError, match=r"model.gguf.*llama.context_length=50000000 .*\nfix: set llama.context_len"):
        read_gguf(tmp_path / "model.gguf")


def test_more_tokens_than_embeddings_are_refused_before_the_library_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_files, "add_vocabulary", lambda writer, size: add_vocabulary(writer, size + 1))
    write_model(tmp_path / "model.gguf", made("llama"))
    monkeypatch.setattr(tokenizers.models, "BPE", None)
    with pytest.raises(WeightsError, match="its tokenizer has 98 tokens, but the model 97 embeddings"):
        read_gguf(tmp_path / "model.gguf")


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(WeightsError, match=r"has the unsupported general\.architecture 'mamba'; supported are llama"):
        read_gguf(tmp_path / "model.gguf")
