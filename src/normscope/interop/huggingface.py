"""Load Hugging Face checkpoints as normscope GPTs. `normscope.interop.families` has one file per family.

Reads only JSON and safetensors; transformers is not required.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from normscope.checks import as_path
from normscope.data.tokenizers.load import load_tokenizer
from normscope.errors import FileError, NormscopeError, WeightsError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.interop.families import families
from normscope.interop.family import Settings
from normscope.models.gpt import GPT, GPTConfig
from normscope.storage.files import open_regular
from normscope.storage.json_files import LARGE_FILE_BYTES, read_json

StateDict = Mapping[str, Tensor]

_FIX = "download it again, or load it with transformers and call save_pretrained"


class _Index(Struct):
    weight_map: dict[str, str]


def read_huggingface(folder: str | Path) -> ExternalCheckpoint:
    """Read the model in a folder with config.json, model.safetensors (or shards), and tokenizer.json."""
    folder = as_path(folder, "a model's folder")
    if not folder.is_dir():
        raise FileError(
            f"no such folder: {folder} (nothing is downloaded)\n"
            f"fix: hf download NAME --local-dir {folder}, or save_pretrained({str(folder)!r}) with transformers"
        )
    settings = read_json(folder / "config.json", dict[str, Any], fix=_FIX, error=WeightsError)
    weights = {key: value for name in _weight_files(folder) for key, value in _load_weights(folder / name).items()}
    model = gpt_from_huggingface(settings, weights)
    tokenizer = load_tokenizer(folder) if (folder / "tokenizer.json").exists() else None
    name = f"Hugging Face {settings['model_type']}"
    return ExternalCheckpoint(name, folder, model.config, model.state_dict(), tokenizer)


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
    kind, known = settings.get("model_type"), families()
    if not isinstance(kind, str) or kind not in known:
        raise WeightsError(f"unsupported model_type {kind!r}\nfix: use one of {', '.join(known)}")
    family = known[kind]
    try:
        config = family.read_config(settings)
        theirs = {name.removeprefix(family.prefix): value for name, value in weights.items()}
        return _build(config, family.convert(config, theirs))
    except NormscopeError:
        raise
    except KeyError as error:
        raise WeightsError(f"the {kind} checkpoint has no {error}") from error
    except (RuntimeError, TypeError) as error:  # a size that cannot be allocated
        reason = str(error).partition("\n")[0]
        raise WeightsError(f"cannot build the {kind} model with the sizes in its config: {reason}") from error


def _build(config: GPTConfig, weights: StateDict) -> GPT:
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
