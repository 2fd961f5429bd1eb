"""LoRA adapters in peft's format: a folder with adapter_config.json and adapter_model.safetensors.

One layer of theirs may hold several of ours, as GPT-2's c_attn holds q, k and v. A product of rank r on each is one
product on the fused layer: the factors A stand below each other, and B has a block for each of ours and zeros
elsewhere. So the rank there is the sum of ours, and the same function is written, without approximation.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normscope.blocks.lora import LoRALinear, lora_layers
from normscope.checks import as_path
from normscope.errors import ConfigError, FileError, WeightsError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.interop.files.lazy_tensors import LazyTensors
from normscope.interop.files.safetensors_file import open_safetensors, safetensors_bytes
from normscope.interop.huggingface.families import families, family_of
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.read import MAX_CONFIG_BYTES, read_huggingface
from normscope.interop.huggingface.weight_table import FusedLinear
from normscope.models.gpt import GPT, GPTConfig
from normscope.storage.files import make_folder
from normscope.storage.json_files import read_json, to_json_bytes

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_FIX = "save the adapter again with peft's save_pretrained"
_REQUIRED = {"peft_type": "LORA", "use_dora": False, "use_qalora": False, "bias": "none", "lora_bias": False}
"""Settings with a single supported value."""
_INITIALIZATIONS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Those that leave the base model as it is. The adapters of others fit weights that peft changes when it loads them."""
_UNUSED = (
    "modules_to_save",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "megatron_config",
    "alora_invocation_tokens",  # the adapter counts only after these tokens
    "use_bdlora",
    "kasa_config",
    "monteclora_config",
    "velora_config",
    "arrow_config",
)
"""Settings that are supported only if they are not in use."""


@dataclass(frozen=True)
class Adapter:
    """A product scale * B A beside the weight of a linear layer, with A (r, in) and B (out, r)."""

    a: Tensor
    b: Tensor
    scale: float

    def added_to(self, weight: Tensor) -> Tensor:
        """The merged weight, computed in float64 and rounded once."""
        product = self.b.double() @ self.a.double() * self.scale
        return (weight.double() + product).to(weight.dtype)


def write_peft(model: GPT, folder: str | Path, base: str = "", family: Family | None = None) -> None:
    """Write the adapters of a model as a folder that peft loads onto the Hugging Face model with the same weights.

    Args:
        model: a model with `LoRALinear` layers.
        folder: the folder; created if necessary.
        base: name or path of the Hugging Face model, for base_model_name_or_path.
        family: its family; by default the one that has models of this config.
    """
    layers = lora_layers(model)
    if not layers:
        raise ConfigError("the model has no LoRA adapters to write\nfix: train with --lora RANK")
    family = family_of(model.config) if family is None else family
    tensors: dict[str, Tensor] = {}
    ranks, alphas = dict[str, int](), dict[str, float]()
    for theirs, fused in family.weight_table.linear_layers(model.config).items():
        adapted = {name: layers[name] for name in fused.ours if name in layers}
        if not adapted:
            continue
        a, b, scale = _fuse(fused, adapted)
        tensors[f"{_PREFIX}{theirs}.lora_A.weight"], tensors[f"{_PREFIX}{theirs}.lora_B.weight"] = a, b
        ranks[theirs], alphas[theirs] = len(a), scale * len(a)
    first = next(iter(ranks))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": ranks[first],
        "lora_alpha": alphas[first],
        "lora_dropout": layers[next(iter(layers))].lora_dropout.p,
        "target_modules": list(ranks),
        "rank_pattern": {re.escape(name): rank for name, rank in ranks.items() if rank != ranks[first]},
        "alpha_pattern": {re.escape(name): alpha for name, alpha in alphas.items() if alpha != alphas[first]},
        "fan_in_fan_out": family.weight_table.transposes,
        "bias": "none",
        "use_rslora": False,
    }
    path = make_folder(as_path(folder, "an adapter"))
    (path / WEIGHTS_NAME).write_bytes(b"".join(safetensors_bytes(tensors)))
    (path / CONFIG_NAME).write_bytes(to_json_bytes(config))


def read_adapters(folder: str | Path, config: GPTConfig, family: Family | None = None) -> dict[str, Adapter]:
    """Read a peft adapter for a model of this config: our layers and what is added to their weights."""
    path = as_path(folder, "an adapter")
    settings = _read_settings(path)
    tensors = open_safetensors(path / WEIGHTS_NAME)
    family = family_of(config) if family is None else family
    found, used = dict[str, Adapter](), set[str]()
    for theirs, fused in family.weight_table.linear_layers(config).items():
        names = [f"{_PREFIX}{theirs}.lora_{part}.weight" for part in "AB"]
        if names[0] not in tensors and names[1] not in tensors:
            continue
        a, b = (_factor(tensors, name) for name in names)
        used |= {*names}
        out, width = sum(shape[0] for shape in fused.ours.values()), next(iter(fused.ours.values()))[1]
        if a.shape[0] != b.shape[1] or (b.shape[0], a.shape[1]) != (out, width):
            raise WeightsError(
                f"the adapter of {theirs} has factors of shape {tuple(a.shape)} and {tuple(b.shape)}, but its "
                f"weight is {out} x {width}\nfix: use the adapter with the model that it was trained for"
            )
        scale = _scale(settings, theirs, a.shape[0])
        for name in fused.ours:
            own = fused.rows_to_ours(name, b)
            keep = (own != 0).any(dim=0)  # zero columns add nothing: those of other layers in a fused one
            keep = keep if bool(keep.any()) else torch.ones_like(keep)
            found[name] = Adapter(a[keep].contiguous(), own[:, keep].contiguous(), scale)
    if left := sorted(set(tensors) - used):
        # peft adds the base weights if a head or an embedding is a target; they might differ from the base model's.
        option = "(save_embedding_layers=False)" if any(".base_layer." in name for name in left) else ""
        raise WeightsError(f"the adapter has weights for unknown layers: {', '.join(left[:4])}\nfix: {_FIX}{option}")
    if not found:
        raise WeightsError(f"{path} has no adapter of a linear layer\nfix: {_FIX}")
    return found


def add_peft(model: GPT, folder: str | Path) -> list[str]:
    """Add the adapters of a peft folder to a model, to train them further; return the names of the layers.

    All other parameters are frozen, as by `add_lora`.
    """
    adapters = read_adapters(folder, model.config)
    model.requires_grad_(False)
    for name, adapter in adapters.items():
        parent, _, child = name.rpartition(".")
        owner = model.get_submodule(parent)
        layer = LoRALinear(getattr(owner, child), len(adapter.a), adapter.scale * len(adapter.a))
        with torch.no_grad():
            layer.lora_a.copy_(adapter.a)
            layer.lora_b.copy_(adapter.b)
        setattr(owner, child, layer)
    return list(adapters)


def is_peft(path: Path) -> bool:
    """Whether this is a folder with a peft adapter."""
    return (path / CONFIG_NAME).is_file()


def read_peft(folder: Path) -> ExternalCheckpoint:
    """Read the model in base_model_name_or_path, which must be a folder, with the adapter merged into its weights."""
    base = _read_settings(folder).get("base_model_name_or_path")
    places = [] if not isinstance(base, str) or not base else [folder / base, Path(base)]
    found = next((place for place in places if (place / "config.json").is_file()), None)
    if found is None:
        raise FileError(
            f"the adapter {folder} is for the model {base!r:.80}, which is not a folder here (nothing is downloaded)\n"
            f"fix: download it, and set base_model_name_or_path in {CONFIG_NAME} to its folder"
        )
    checkpoint = read_huggingface(found)
    kind = checkpoint.format.rpartition(" ")[2]
    if kind not in families():
        raise WeightsError(
            f"the adapter {folder} is for a {kind} model, of which only the text part is read\n"
            f"fix: merge it with peft's merge_and_unload, and save the merged model with save_pretrained"
        )
    family = families()[kind]
    adapters = read_adapters(folder, checkpoint.config, family)
    weights = checkpoint.weights
    assert isinstance(weights, LazyTensors)

    def merged(name: str) -> Tensor:
        layer, _, part = name.rpartition(".")
        adapted = part == "weight" and layer in adapters
        return adapters[layer].added_to(weights[name]) if adapted else weights[name]

    return ExternalCheckpoint(
        f"peft adapter on {checkpoint.format}",
        folder,
        checkpoint.config,
        LazyTensors(weights.specs, merged),
        checkpoint.tokenizer,
        checkpoint.chat_template,
    )


def _fuse(fused: FusedLinear, adapted: Mapping[str, LoRALinear]) -> tuple[Tensor, Tensor, float]:
    """Return the factors A and B of a layer of theirs, and its scale.

    Our layers may have different scales: all but the first are in B.
    """
    scale = next(iter(adapted.values())).scale
    total, first, blocks = sum(layer.rank for layer in adapted.values()), 0, list[Tensor]()
    for name, shape in fused.ours.items():
        block = torch.zeros(shape[0], total)
        if (layer := adapted.get(name)) is not None:
            block[:, first : first + layer.rank] = layer.lora_b.detach() * (layer.scale / scale)
            first += layer.rank
        blocks.append(block)
    a = torch.cat([layer.lora_a.detach() for layer in adapted.values()])
    return a.float().contiguous(), fused.rows_to_theirs(blocks).contiguous(), scale


def _read_settings(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_NAME
    settings = read_json(path, dict[str, Any], fix=_FIX, error=WeightsError, max_bytes=MAX_CONFIG_BYTES)
    for name, value in _REQUIRED.items():
        if settings.get(name, value) != value:
            raise WeightsError(
                f"unsupported setting {name}={settings[name]!r:.60} in {CONFIG_NAME}: expected {value!r}"
            )
    if (initialization := settings.get("init_lora_weights")) not in _INITIALIZATIONS:
        raise WeightsError(
            f"unsupported setting init_lora_weights={initialization!r:.60} in {CONFIG_NAME}: it changes the base\n"
            f"fix: save it with peft's save_pretrained(path_initial_model_for_weight_conversion=...)"
        )
    for name in _UNUSED:
        if settings.get(name):
            raise WeightsError(f"unsupported setting {name}={settings[name]!r:.60} in {CONFIG_NAME}")
    return settings


def _scale(settings: Mapping[str, Any], theirs: str, rank: int) -> float:
    """peft's scale of a layer: alpha / r, or alpha / sqrt(r), with the values of the patterns that match its name."""
    wanted, alpha = (
        _by_pattern(settings.get(f"{name}_pattern"), theirs, settings.get(default))
        for name, default in (("rank", "r"), ("alpha", "lora_alpha"))
    )
    if wanted != rank:
        raise WeightsError(
            f"the adapter of {theirs} has rank {rank}, but {CONFIG_NAME} says {wanted!r:.20}\nfix: {_FIX}"
        )
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise WeightsError(f"{CONFIG_NAME} has no valid lora_alpha: {alpha!r:.20}\nfix: {_FIX}")
    return float(alpha) / (rank**0.5 if settings.get("use_rslora") else rank)


_PIECE = r"[\w.\-|]|\\[.\-]|\\d\+?|\.[*+]|\[[\w\-]+\]\+?|\([\w.|]+\)"
"""What a pattern may consist of: characters, digits, anything, sets and alternatives."""
_MAX_REPEATS = 3


def _by_pattern(patterns: object, name: str, default: Any) -> Any:
    """The value of the first pattern that matches the end of a layer's name, as peft finds it.

    Patterns are regular expressions, and a hostile one could take forever: names, digits, sets, alternatives and
    `.*` are read, and others refused.
    """
    if patterns is None:
        return default
    if not isinstance(patterns, Mapping):
        raise WeightsError(f"{CONFIG_NAME} has a pattern that is no object: {patterns!r:.60}\nfix: {_FIX}")
    for pattern, value in patterns.items():
        plain = pattern.removeprefix("^").removesuffix("$")
        repeats = pattern.count("*") + pattern.count("+")
        if len(pattern) > 200 or repeats > _MAX_REPEATS or not re.fullmatch(rf"(?:{_PIECE})+", plain):
            raise WeightsError(
                f"unsupported pattern {pattern!r:.80} in {CONFIG_NAME}: it is a regular expression of more than names, "
                f"digits, sets and alternatives\nfix: write it with the names of layers"
            )
        if re.match(rf"(?:.*\.)?(?:{pattern})$", name):
            return value
    return default


def _factor(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise WeightsError(f"the adapter has no {name}\nfix: {_FIX}")
    tensor = tensors[name]
    if tensor.dim() != 2 or not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
        raise WeightsError(
            f"{name} must be a finite matrix, but is {tensor.dtype} of {tuple(tensor.shape)}\nfix: {_FIX}"
        )
    return tensor.float()
