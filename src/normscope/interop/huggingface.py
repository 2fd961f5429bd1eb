"""Hugging Face checkpoints of GPT-2 and Llama as normscope GPTs.

Only JSON and safetensors are read, and transformers is not needed for it.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from normscope.blocks.norm.spec import NormSpec
from normscope.blocks.rotary import Rotary
from normscope.errors import WeightsError
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import gpt2, llama

Settings = Mapping[str, Any]
Weights = Mapping[str, Tensor]

_ACTIVATIONS = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
}


def load_huggingface(folder: str | Path) -> GPT:
    """The model in a folder with config.json and model.safetensors (or its shards)."""
    folder = Path(folder)
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        index = folder / "model.safetensors.index.json"
        names = ["model.safetensors"]
        if index.exists():
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        weights = {key: value for name in names for key, value in load_file(folder / Path(name).name).items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, SafetensorError) as error:
        raise WeightsError(
            f"{folder} could not be read as a Hugging Face model: {error}. It needs config.json and model.safetensors"
        ) from error
    return gpt_from_huggingface(settings, weights)


def gpt_from_huggingface(settings: Settings, weights: Weights) -> GPT:
    """A GPT from the contents of config.json and the named weights, as `model.state_dict()` gives them."""
    if not isinstance(settings, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise WeightsError("a model is read from a dictionary of settings and one of tensors, but got something else")
    kind = settings.get("model_type")
    readers: dict[str, tuple[Callable[[Settings], GPTConfig], Callable[[GPTConfig, Weights], dict[str, Tensor]]]] = {
        "gpt2": (_gpt2_config, _gpt2_weights),
        "llama": (_llama_config, _llama_weights),
    }
    if not isinstance(kind, str) or kind not in readers:
        raise WeightsError(f"models of type {kind!r} cannot be read; those of {', '.join(readers)} can")
    read_config, read_weights = readers[kind]
    try:
        config = read_config(settings)
        ours = read_weights(config, weights)
    except KeyError as error:
        raise WeightsError(f"the {kind} model lacks {error}") from error
    with torch.device("meta"):  # no time for a start that is overwritten at once
        model = GPT(config)
    model.to_empty(device="cpu")
    _load(model, ours)
    return model


def _load(model: GPT, weights: Mapping[str, Tensor]) -> None:
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    wrong = [
        f"{name}: {weights[name].dtype} of {tuple(weights[name].shape)} instead of floats of {shape}"
        for name, shape in wanted.items()
        if tuple(weights[name].shape) != shape or not weights[name].is_floating_point()
    ]
    if wrong:
        raise WeightsError(f"{len(wrong)} of {len(wanted)} weights do not fit: {'; '.join(wrong[:4])}")
    model.load_state_dict(dict(weights))
    for module in model.modules():
        if isinstance(module, Rotary):  # its tables follow from the config and are not among the weights
            module.reset_parameters()


def _gpt2_config(settings: Settings) -> GPTConfig:
    _refuse(
        settings,
        scale_attn_weights=False,
        scale_attn_by_inverse_layer_idx=True,
        reorder_and_upcast_attn=True,
        add_cross_attention=True,
    )
    return gpt2(
        vocab_size=settings["vocab_size"],
        context=settings["n_positions"],
        width=settings["n_embd"],
        depth=settings["n_layer"],
        heads=settings["n_head"],
        hidden=settings.get("n_inner"),
        activation=_activation(settings.get("activation_function", "gelu_new")),
        norm=NormSpec("... [d]", eps=settings.get("layer_norm_epsilon", 1e-5)),
        tied_head=settings.get("tie_word_embeddings", True),
    )


def _gpt2_weights(config: GPTConfig, theirs: Weights) -> dict[str, Tensor]:
    theirs = {name.removeprefix("transformer."): value for name, value in theirs.items()}
    ours = {"embedding.weight": theirs["wte.weight"], "position.weight": theirs["wpe.weight"]}
    ours |= _both("final_norm", "ln_f", theirs)
    for i in range(config.depth):
        block, layer = f"blocks.{i}", f"h.{i}"
        ours |= _both(f"{block}.norms.0", f"{layer}.ln_1", theirs) | _both(f"{block}.norms.1", f"{layer}.ln_2", theirs)
        # GPT-2 keeps q, k and v in one matrix, and all its matrices the other way round.
        for part, rank in (("weight", 2), ("bias", 1)):
            joined = _of_rank(rank, f"{layer}.attn.c_attn.{part}", theirs)
            for name, value in zip("qkv", joined.tensor_split(3, dim=-1), strict=True):
                ours[f"{block}.attention.{name}.{part}"] = value.t()
            for name, other in (("attention.out", "attn.c_proj"), ("mlp.up", "mlp.c_fc"), ("mlp.down", "mlp.c_proj")):
                ours[f"{block}.{name}.{part}"] = _of_rank(rank, f"{layer}.{other}.{part}", theirs).t()
    if not config.tied_head:
        ours["head.weight"] = theirs["lm_head.weight"]
    return ours


def _llama_config(settings: Settings) -> GPTConfig:
    _refuse(settings, attention_bias=True, mlp_bias=True)
    rope = _rope(settings)
    if settings.get("hidden_act", "silu") != "silu":
        raise WeightsError(f"hidden_act={settings['hidden_act']!r}: a Llama here has silu")
    return llama(
        vocab_size=settings["vocab_size"],
        context=settings["max_position_embeddings"],
        width=settings["hidden_size"],
        depth=settings["num_hidden_layers"],
        heads=settings["num_attention_heads"],
        kv_heads=settings.get("num_key_value_heads") or settings["num_attention_heads"],
        head_dim=settings.get("head_dim"),
        hidden=settings["intermediate_size"],
        norm=NormSpec("... [d]", statistic="rms", bias=False, eps=settings.get("rms_norm_eps", 1e-6)),
        rotary_base=rope.get("rope_theta", settings.get("rope_theta", 10000.0)),
        tied_head=settings.get("tie_word_embeddings", False),
    )


def _llama_weights(config: GPTConfig, theirs: Weights) -> dict[str, Tensor]:
    names = {
        "attention.q": "self_attn.q_proj",
        "attention.k": "self_attn.k_proj",
        "attention.v": "self_attn.v_proj",
        "attention.out": "self_attn.o_proj",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
        "norms.0": "input_layernorm",
        "norms.1": "post_attention_layernorm",
    }
    ours = {"embedding.weight": theirs["model.embed_tokens.weight"], "final_norm.weight": theirs["model.norm.weight"]}
    for i in range(config.depth):
        for name, other in names.items():
            ours[f"blocks.{i}.{name}.weight"] = theirs[f"model.layers.{i}.{other}.weight"]
    if not config.tied_head:
        ours["head.weight"] = theirs["lm_head.weight"]
    return ours


def _rope(settings: Settings) -> Settings:
    """The settings of the rotary positions, which stand under one name today and stood under another before."""
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise WeightsError(f"the settings of the rotary positions must be a dictionary, but got {rope!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))  # older files say type
    if kind != "default":
        raise WeightsError(f"rotary positions of type {kind!r} are not known here, only the default ones")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise WeightsError(f"rotary positions over a part of the head are not known here, but got {dict(rope)}")
    return rope


def _of_rank(rank: int, name: str, weights: Weights) -> Tensor:
    if weights[name].dim() != rank:
        raise WeightsError(f"{name} must have {rank} dimensions, but has shape {tuple(weights[name].shape)}")
    return weights[name]


def _both(ours: str, theirs: str, weights: Weights) -> dict[str, Tensor]:
    return {f"{ours}.{part}": weights[f"{theirs}.{part}"] for part in ("weight", "bias")}


def _activation(name: str) -> str:
    if name not in _ACTIVATIONS:
        raise WeightsError(f"the activation {name!r} is not known here; these are: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _refuse(settings: Settings, **unsupported: Any) -> None:
    for name, value in unsupported.items():
        if settings.get(name) == value:
            raise WeightsError(f"{name}={value} changes what the model computes, and is not supported here")
