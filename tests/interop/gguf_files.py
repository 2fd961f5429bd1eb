"""GGUF files of small models, written with the gguf package as llama.cpp's converter writes them."""

from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType as QuantizationType
from torch import Tensor

from tests.interop.checkpoints import stored

ARCHITECTURES = {
    "gpt2": gguf.MODEL_ARCH.GPT2, "llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3, "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3, "phi3": gguf.MODEL_ARCH.PHI3, "olmo2": gguf.MODEL_ARCH.OLMO2,
    "gpt_neox": gguf.MODEL_ARCH.GPTNEOX, "smollm3": gguf.MODEL_ARCH.SMOLLM3,
}  # fmt: skip
NEIGHBORS = ("llama", "mistral", "smollm3")
"""Families whose rows of q and k the converter sorts."""


def write_model(
    path: Path, model: Any, kind: QuantizationType = QuantizationType.F32, **changes: Any
) -> gguf.GGUFWriter:
    """Write a model of transformers.

    Args:
        path: the file.
        model: the model.
        kind: type of the matrices; vectors are float32.
        changes: metadata to change, with underscores instead of points, without the name of the architecture; None
            leaves a key out.
    """
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    name = gguf.MODEL_ARCH_NAMES[architecture]
    writer = gguf.GGUFWriter(path, name)
    for key, value in (_metadata(config) | {key.replace("__", "."): value for key, value in changes.items()}).items():
        if value is not None:
            kind_of_value = gguf.GGUFValueType.UINT32 if type(value) is int else gguf.GGUFValueType.get_type(value)
            writer.add_key_value(f"{name}.{key}", value, kind_of_value, gguf.GGUFValueType.INT32)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for theirs, tensor in stored(model).items():
        if theirs == "lm_head.weight" and config.tie_word_embeddings:
            continue
        new = names.get_name(theirs, (".weight", ".bias"))
        assert new is not None, theirs
        values = converted(theirs, tensor, config).float().numpy()
        stored_kind = kind if values.ndim > 1 else QuantizationType.F32
        writer.add_tensor(new, gguf.quants.quantize(values, stored_kind), raw_dtype=stored_kind)
    _add_scaling(writer, config)
    add_vocabulary(writer, config.vocab_size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return writer


def _metadata(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        "attention.head_count": config.num_attention_heads,
    }
    kind = config.model_type
    if kind in ("gpt2", "gpt_neox"):
        eps = config.layer_norm_epsilon if kind == "gpt2" else config.layer_norm_eps
        found |= {"attention.layer_norm_epsilon": eps}
    else:
        found |= {
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        }
    rope = getattr(config, "rope_parameters", None) or {}
    full = rope.get("full_attention", rope)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if kind == "gpt_neox":
        found |= {"use_parallel_residual": config.use_parallel_residual}
    elif full:
        found |= {"rope.freq_base": full["rope_theta"], "attention.key_length": size, "attention.value_length": size}
    if full and not kind.startswith("gemma"):
        found |= {"rope.dimension_count": int(size * full.get("partial_rotary_factor", 1.0))}
    if kind.startswith("gemma"):
        found |= {
            "attention.sliding_window": config.sliding_window,
            "final_logit_softcapping": config.final_logit_softcapping,
            "attn_logit_softcapping": config.attn_logit_softcapping if kind == "gemma2" else None,
        }
    if kind == "phi3":
        found |= {"attention.sliding_window": config.sliding_window or 0}
    if full.get("rope_type") == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": full["factor"]}
    return found


def converted(name: str, tensor: Tensor, config: Any) -> Tensor:
    """A tensor as the converter stores it."""
    kind, heads = config.model_type, config.num_attention_heads
    if kind in NEIGHBORS and name.rsplit(".", 1)[0].endswith(("q_proj", "k_proj")):
        heads = heads if "q_proj" in name else config.num_key_value_heads
        return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    if kind == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return tensor.t().contiguous()
    if kind == "gpt_neox" and "query_key_value" in name:
        return tensor.reshape(heads, 3, -1, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)
    return tensor


def _add_scaling(writer: gguf.GGUFWriter, config: Any) -> None:
    """The divisors of frequencies that Llama 3.1 has instead of metadata."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "llama3":
        return
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    size = config.hidden_size // config.num_attention_heads
    plain = rope["rope_theta"] ** (-torch.arange(0, size, 2) / size)
    writer.add_tensor("rope_freqs.weight", (plain / scaled).float().numpy())


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """A byte-level vocabulary in the order of GPT-2, with an end-of-text token at its end."""
    from normscope.data.tokenizers.huggingface import bytes_to_unicode

    tokens = [*bytes_to_unicode(), "Ġt", "he"][: size - 1]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, "<|endoftext|>"])
    writer.add_token_types([1] * len(tokens) + [3])
    writer.add_token_merges(["Ġ t", "h e"])
    writer.add_chat_template("{{ messages }}")
