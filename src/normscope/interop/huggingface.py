"""Load Hugging Face checkpoints of GPT-2 and Llama as normscope GPTs.

Reads only JSON and safetensors; transformers is not required.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from normscope.blocks.norm.spec import NormSpec
from normscope.checks import as_path
from normscope.errors import FileError, NormscopeError, WeightsError
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import gpt2, llama
from normscope.storage.files import open_regular
from normscope.storage.json_files import LARGE_FILE_BYTES, read_json

Settings = Mapping[str, Any]
StateDict = Mapping[str, Tensor]
RemainingWeights = dict[str, Tensor]
"""Weights that have not been converted yet."""

_ACTIVATIONS = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
}


_IGNORED = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Buffers in older checkpoints: causal masks and rotary frequencies."""


_FIX = "download it again, or load it with transformers and call save_pretrained"


class _Index(Struct):
    weight_map: dict[str, str]


def load_huggingface(folder: str | Path) -> GPT:
    """Load the model in a folder with config.json and model.safetensors (or shards), in eval mode.

    >>> import tempfile
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     GPT2LMHeadModel(tiny).save_pretrained(folder)
    ...     model = load_huggingface(folder)
    >>> model.config.depth, model.config.activation, model.training
    (2, 'gelu-tanh', False)
    """
    folder = as_path(folder, "a model's folder")
    if not folder.is_dir():
        raise FileError(
            f"no such folder: {folder} (nothing is downloaded)\n"
            f"fix: hf download NAME --local-dir {folder}, or save_pretrained({str(folder)!r}) with transformers"
        )
    settings = read_json(folder / "config.json", dict[str, Any], fix=_FIX, error=WeightsError)
    weights = {key: value for name in _weight_files(folder) for key, value in _load_weights(folder / name).items()}
    return gpt_from_huggingface(settings, weights)


def _refuse_pickles(folder: Path) -> None:
    """Refuse weights in pickle files: loading one can run arbitrary code."""
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"))
    if pickles and not (folder / "model.safetensors").exists():
        raise WeightsError(
            f"refusing to load the pickle {folder / pickles[0]}, which can run arbitrary code: no model.safetensors\n"
            f"fix: if you trust it, load it with transformers and call save_pretrained, which writes safetensors"
        )


def _weight_files(folder: Path) -> list[str]:
    """Names of the weight files: one, or the shards of an index."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        _refuse_pickles(folder)
        return ["model.safetensors"]
    names = set(read_json(index, _Index, fix=_FIX, error=WeightsError, max_bytes=LARGE_FILE_BYTES).weight_map.values())
    for name in names:
        if not re.fullmatch(r"[\w.-]+\.safetensors", name):
            raise WeightsError(f"{index} names {name!r:.80}, which is not a safetensors file beside it\nfix: {_FIX}")
    return sorted(names)


def _load_weights(path: Path) -> dict[str, Tensor]:
    try:
        with open_regular(path):  # safetensors would block on a pipe
            pass
        return load_file(path)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise WeightsError(f"{path} could not be read: {error}\nfix: {_FIX}") from error


def gpt_from_huggingface(settings: Settings, weights: StateDict) -> GPT:
    """Build a GPT in eval mode from the contents of config.json and a state_dict."""
    if not (isinstance(settings, Mapping) and isinstance(weights, Mapping)) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    ):
        raise WeightsError("expected a dict of settings and a state_dict of tensors")
    kind = settings.get("model_type")
    readers: dict[
        str, tuple[Callable[[Settings], GPTConfig], Callable[[GPTConfig, RemainingWeights], dict[str, Tensor]]]
    ] = {
        "gpt2": (_gpt2_config, _gpt2_weights),
        "llama": (_llama_config, _llama_weights),
    }
    if not isinstance(kind, str) or kind not in readers:
        raise WeightsError(f"unsupported model_type {kind!r}\nfix: use one of {', '.join(readers)}")
    read_config, read_weights = readers[kind]
    try:
        config = read_config(settings)
        rest = {name.removeprefix("transformer."): value for name, value in weights.items()}
        ours = read_weights(config, rest)
        _refuse_unused(rest, ours)
        return _made(config, ours)
    except NormscopeError:
        raise
    except KeyError as error:
        raise WeightsError(f"the {kind} checkpoint has no {error}") from error
    except (RuntimeError, TypeError) as error:  # a size that cannot be allocated
        reason = str(error).partition("\n")[0]
        raise WeightsError(f"cannot build the {kind} model with the sizes in its config: {reason}") from error


def _made(config: GPTConfig, weights: Mapping[str, Tensor]) -> GPT:
    with torch.device("meta"):  # no initialization, and no memory before the shapes are checked
        model = GPT(config)
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    wrong = [
        f"{name}: {weights[name].dtype} of {tuple(weights[name].shape)} instead of floating-point {shape}"
        for name, shape in wanted.items()
        if tuple(weights[name].shape) != shape or not weights[name].is_floating_point()
    ]
    if wrong:
        raise WeightsError(f"{len(wrong)} of {len(wanted)} weights have a wrong dtype or shape: {'; '.join(wrong[:4])}")
    model.to_empty(device="cpu")
    model.load_state_dict(dict(weights))
    return model.eval()


def _refuse_unused(rest: RemainingWeights, ours: Mapping[str, Tensor]) -> None:
    """Refuse unused weights: config and weights do not belong together."""
    table, head = ours["embedding.weight"], rest.get("lm_head.weight")
    if head is not None and head.shape == table.shape and torch.equal(head, table):
        del rest["lm_head.weight"]  # a tied head, saved twice
    left = [name for name in rest if not _IGNORED.fullmatch(name)]
    if left:
        raise WeightsError(
            f"weights not used by the model in config.json ({len(left)}): {', '.join(left[:4])}"
            f"{', ...' * (len(left) > 4)}\nfix: use config.json and weights of the same model"
        )


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
        dropout=settings.get("resid_pdrop", 0.1),  # one rate; GPT-2 has three
    )


def _gpt2_weights(config: GPTConfig, theirs: RemainingWeights) -> dict[str, Tensor]:
    ours = {"embedding.weight": theirs.pop("wte.weight"), "position.weight": theirs.pop("wpe.weight")}
    ours |= _both("final_norm", "ln_f", theirs)
    for i in range(config.depth):
        block, layer = f"blocks.{i}", f"h.{i}"
        ours |= _both(f"{block}.norms.0", f"{layer}.ln_1", theirs) | _both(f"{block}.norms.1", f"{layer}.ln_2", theirs)
        # GPT-2 stores q, k and v in one matrix, and all matrices transposed.
        for part, rank in (("weight", 2), ("bias", 1)):
            joined = _of_rank(rank, f"{layer}.attn.c_attn.{part}", theirs)
            for name, value in zip("qkv", joined.tensor_split(3, dim=-1), strict=True):
                ours[f"{block}.attention.{name}.{part}"] = value.t()
            for name, other in (("attention.out", "attn.c_proj"), ("mlp.up", "mlp.c_fc"), ("mlp.down", "mlp.c_proj")):
                ours[f"{block}.{name}.{part}"] = _of_rank(rank, f"{layer}.{other}.{part}", theirs).t()
    if not config.tied_head:
        ours["head.weight"] = theirs.pop("lm_head.weight")
    return ours


def _llama_config(settings: Settings) -> GPTConfig:
    _refuse(settings, attention_bias=True, mlp_bias=True)
    rope = _rope(settings)
    if settings.get("hidden_act", "silu") != "silu":
        raise WeightsError(f"unsupported hidden_act={settings['hidden_act']!r} for Llama: expected silu")
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
        dropout=settings.get("attention_dropout") or 0.0,  # applied to all branches here
    )


def _llama_weights(config: GPTConfig, theirs: RemainingWeights) -> dict[str, Tensor]:
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
    ours = {
        "embedding.weight": theirs.pop("model.embed_tokens.weight"),
        "final_norm.weight": theirs.pop("model.norm.weight"),
    }
    for i in range(config.depth):
        for name, other in names.items():
            ours[f"blocks.{i}.{name}.weight"] = theirs.pop(f"model.layers.{i}.{other}.weight")
    if not config.tied_head:
        ours["head.weight"] = theirs.pop("lm_head.weight")
    return ours


def _rope(settings: Settings) -> Settings:
    """The rotary settings: rope_parameters, or rope_scaling in older files."""
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise WeightsError(f"rotary settings must be a dict, but got {rope!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))  # `type` in older files
    if kind != "default":
        raise WeightsError(f"unsupported rope_type {kind!r}: expected default")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise WeightsError(f"partial rotary embeddings are not supported: {dict(rope)}")
    return rope


def _of_rank(rank: int, name: str, weights: RemainingWeights) -> Tensor:
    weight = weights.pop(name)
    if weight.dim() != rank:
        raise WeightsError(f"{name} must have {rank} dimensions, but has shape {tuple(weight.shape)}")
    return weight


def _both(ours: str, theirs: str, weights: RemainingWeights) -> dict[str, Tensor]:
    return {f"{ours}.{part}": weights.pop(f"{theirs}.{part}") for part in ("weight", "bias")}


def _activation(name: object) -> str:
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise WeightsError(f"unsupported activation {name!r}: expected one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _refuse(settings: Settings, **unsupported: Any) -> None:
    for name, value in unsupported.items():
        if settings.get(name) == value:
            raise WeightsError(f"unsupported setting {name}={value}")
