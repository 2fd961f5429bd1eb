"""Read the checkpoints of nanochat: model_NNNNNN.pt and meta_NNNNNN.json, of its first version and of later ones.

| written by nanochat                              | preset             |
|--------------------------------------------------|--------------------|
| up to 2026-01-10, commit 16788ee for instance    | `nanochat`         |
| from 2026-03-14 on, commit 92d63d4 for instance  | `nanochat-2026-07` |

Models from between these dates have some of the parts of the second in forms that were soon changed. They are refused.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec import Struct
from torch import Tensor

from normscope.checks import as_path
from normscope.errors import FileError, NormscopeError, WeightsError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.interop.files.lazy_tensors import LazyTensors
from normscope.interop.files.torch_file import is_state_dict, read_torch_file, without_wrappers
from normscope.interop.huggingface.weight_table import parameter_shapes
from normscope.interop.nano.nanochat_tokenizer import CHAT_TEMPLATE, find_tokenizer
from normscope.models.gpt import GPTConfig
from normscope.models.presets import nanochat, nanochat_2026_07, nanochat_windows
from normscope.storage.json_files import read_json
from normscope.storage.tensor_spec import TensorSpec

_FIX = (
    "name a folder with model_NNNNNN.pt and meta_NNNNNN.json, as nanochat's scripts write them, or one such model file"
)
_NAME = re.compile(r"model_(\d{1,12})\.pt")
_LATER = ("resid_lambdas", "x0_lambdas", "smear_gate.weight", "smear_lambda", "backout_lambda")
"""Weights that only the second version has."""


class _Settings(Struct, forbid_unknown_fields=True):
    sequence_len: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_kv_head: int
    n_embd: int
    window_pattern: str = "L"


class _Meta(Struct):
    model_config: _Settings


def read_nanochat(path: str | Path) -> ExternalCheckpoint:
    """Read a checkpoint of nanochat: a folder, whose last step is taken, or a model_NNNNNN.pt.

    The tokenizer is nanochat's tokenizer.pkl, in the same folder or in nanochat's own, `../../tokenizer`.
    """
    file = _model_file(as_path(path, "a nanochat checkpoint"))
    meta = file.with_name(file.name.replace("model_", "meta_", 1)).with_suffix(".json")
    settings = read_json(meta, _Meta, fix=_FIX, error=WeightsError).model_config
    theirs = read_torch_file(file)
    if not is_state_dict(theirs):
        raise WeightsError(f"{file} is not a nanochat model: it is not a dict of tensors\nfix: {_FIX}")
    try:
        named = without_wrappers(theirs)
        config = _config(settings, named)
        weights = nanochat_weights(config, named).copies()
    except NormscopeError as error:
        raise WeightsError(f"{file}: {error}") from None
    tokenizer, notices = find_tokenizer(file.parent, config.vocab_size)
    template = CHAT_TEMPLATE if tokenizer is not None else None
    return ExternalCheckpoint("nanochat", file, config, weights, tokenizer, template, notices, "sequence_len")


def _model_file(path: Path) -> Path:
    if not path.is_dir():
        if not _NAME.fullmatch(path.name) or not path.exists():
            raise FileError(f"there is no nanochat model {path}\nfix: {_FIX}")
        return path
    steps = {int(found[1]): one for one in path.iterdir() if (found := _NAME.fullmatch(one.name))}
    if not steps:
        inside = sorted(one.name for one in path.iterdir() if one.is_dir() and any(one.glob("model_*.pt")))
        fix = f"name one of its folders: {', '.join(inside[:5])}" if inside else _FIX
        raise FileError(f"{path} has no model_NNNNNN.pt\nfix: {fix}")
    return steps[max(steps)]


def _config(settings: _Settings, weights: Mapping[str, Tensor]) -> GPTConfig:
    """The config, of the version that the names of the weights tell."""
    shared: dict[str, Any] = {
        "vocab_size": settings.vocab_size,
        "context": settings.sequence_len,
        "width": settings.n_embd,
        "depth": settings.n_layer,
        "heads": settings.n_head,
        "kv_heads": settings.n_kv_head,
    }
    found = [name for name in _LATER if name in weights]
    if not found and settings.window_pattern == "L":
        return nanochat(**shared)
    if len(found) < len(_LATER):
        has, lacks = found[0] if found else "a window_pattern", next(name for name in _LATER if name not in weights)
        raise WeightsError(
            f"it has {has} but no {lacks}: nanochat wrote such models between January and March 2026, and they differ "
            f"in details that a checkpoint does not tell\nfix: use a model of an earlier or a later nanochat"
        )
    pattern = settings.window_pattern.upper()
    if not pattern or set(pattern) - set("SL"):
        raise WeightsError(
            f"window_pattern={settings.window_pattern!r:.40} must consist of the letters S and L\nfix: {_FIX}"
        )
    windows = nanochat_windows(pattern, settings.sequence_len, settings.n_layer)
    return nanochat_2026_07(**shared, **{"window": None, **windows})


def nanochat_weights(config: GPTConfig, theirs: Mapping[str, Tensor]) -> LazyTensors:
    """Our weights; raises if one of theirs is missing, is not used, or has another shape."""
    sources, specs = _sources(config), {}
    for problem, names in (
        ("lacks", {source.name for source in sources.values()} - theirs.keys()),
        ("has unknown", theirs.keys() - {source.name for source in sources.values()}),
    ):
        if names:
            raise WeightsError(
                f"the model {problem} weights ({len(names)}): {', '.join(sorted(names)[:4])}\nfix: {_FIX}"
            )
    for name, shape in parameter_shapes(config).items():
        their_name, convert = sources[name]
        found = theirs[their_name]
        try:
            converted = convert(torch.empty_like(found, device="meta"))
        except (RuntimeError, IndexError):  # a wrong number of dimensions
            converted = found
        if tuple(converted.shape) != shape or not found.is_floating_point():
            raise WeightsError(
                f"{their_name} is {found.dtype} of {tuple(found.shape)}, which does not fit its config\nfix: {_FIX}"
            )
        specs[name] = TensorSpec(shape, found.dtype)
    return LazyTensors(specs, lambda name: sources[name].convert(theirs[sources[name].name]))


class _Source(NamedTuple):
    """A tensor of theirs, and how it becomes one of ours."""

    name: str
    convert: Callable[[Tensor], Tensor] = torch.Tensor.detach


def _sources(config: GPTConfig) -> Mapping[str, _Source]:
    """Where each of our weights comes from."""
    turn = partial(reverse_rotation, head_dim=config.head_sizes[2])

    def crop(weight: Tensor) -> Tensor:  # the rest pads the vocabulary to a multiple of 64, and is never used
        return weight[: config.vocab_size]

    sources = {
        "embedding.weight": _Source("transformer.wte.weight", crop),
        "head.weight": _Source("lm_head.weight", crop),
    }
    if config.smear:
        sources["smear.gate.weight"] = _Source("smear_gate.weight")
        sources["smear.scale"] = _Source("smear_lambda")
    if config.backout:
        sources["backout.b"] = _Source("backout_lambda", torch.neg)  # which nanochat subtracts
    for i in range(config.depth):
        block, layer = f"blocks.{i}", f"transformer.h.{i}"
        sources[f"{block}.attention.q.weight"] = _Source(f"{layer}.attn.c_q.weight", turn)
        sources[f"{block}.attention.k.weight"] = _Source(f"{layer}.attn.c_k.weight", turn)
        sources[f"{block}.attention.v.weight"] = _Source(f"{layer}.attn.c_v.weight")
        sources[f"{block}.attention.out.weight"] = _Source(f"{layer}.attn.c_proj.weight")
        sources[f"{block}.mlp.up.weight"] = _Source(f"{layer}.mlp.c_fc.weight")
        sources[f"{block}.mlp.down.weight"] = _Source(f"{layer}.mlp.c_proj.weight")
        if config.embedding_mix:
            sources[f"embedding_mixes.{i}.a"] = _Source("resid_lambdas", partial(_number, index=i))
            sources[f"embedding_mixes.{i}.b"] = _Source("x0_lambdas", partial(_number, index=i))
        if i in config.value_layers:
            sources[f"value_embeddings.{i}.weight"] = _Source(f"value_embeds.{i}.weight", crop)
            sources[f"{block}.attention.value_gate.weight"] = _Source(f"{layer}.attn.ve_gate.weight")
    return sources


def _number(numbers: Tensor, index: int) -> Tensor:
    """One of the numbers that nanochat keeps in one tensor, of shape (1)."""
    return numbers[index : index + 1]


def reverse_rotation(weight: Tensor, head_dim: int) -> Tensor:
    """Convert the weight (heads * head_dim, d) of queries or keys between rotary embeddings of opposite angles.

    A rotation by -t is F R(t) F, where F flips the sign of the second half of a head: it maps (a, b) to
    (a cos t + b sin t, -a sin t + b cos t). Attention uses (F R(t) F q) . (F R(u) F k) = (R(t) F q) . (R(u) F k), so F
    goes into the weights. It changes no norm over the head, and is its own inverse, without rounding.

    >>> reverse_rotation(torch.ones(4, 1), head_dim=4).flatten().tolist()
    [1.0, 1.0, -1.0, -1.0]
    """
    signs = torch.ones(head_dim, dtype=weight.dtype, device=weight.device)
    signs[head_dim // 2 :] = -1
    turned: Tensor = (weight.unflatten(0, (-1, head_dim)) * signs[:, None]).flatten(0, 1)
    return turned
