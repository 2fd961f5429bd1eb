"""Read Hugging Face checkpoints. `normscope.interop.families` has one file per family.

Reads only JSON and safetensors; transformers is not required.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from normscope.checks import as_path
from normscope.data.tokenizers.load import load_tokenizer
from normscope.errors import FileError, WeightsError
from normscope.interop.checkpoint import ExternalCheckpoint, model_from_weights
from normscope.interop.families import families
from normscope.interop.family import Family
from normscope.interop.files.safetensors_file import open_sharded
from normscope.interop.settings import Settings
from normscope.models.gpt import GPT
from normscope.storage.files import open_regular, read_limited
from normscope.storage.json_files import MIB, read_json

_FIX = "download it again, or load it with transformers and call save_pretrained"
_TEMPLATE_NAME = "chat_template.jinja"
_MAX_TEMPLATE_BYTES = MIB


def read_huggingface(folder: str | Path) -> ExternalCheckpoint:
    """Read the model in a folder with config.json, model.safetensors (or shards), and tokenizer.json.

    >>> import tempfile
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     GPT2LMHeadModel(tiny).save_pretrained(folder)
    ...     checkpoint = read_huggingface(folder)
    ...     checkpoint.format, checkpoint.config.activation, checkpoint.weights["blocks.1.attention.q.bias"].shape
    ('Hugging Face gpt2', 'gelu-tanh', torch.Size([16]))
    """
    folder = as_path(folder, "a model's folder")
    if not folder.is_dir():
        raise FileError(
            f"no such folder: {folder} (nothing is downloaded)\n"
            f"fix: hf download NAME --local-dir {folder}, or save_pretrained({str(folder)!r}) with transformers"
        )
    settings = read_json(folder / "config.json", dict[str, Any], fix=_FIX, error=WeightsError)
    theirs = open_sharded(folder)
    family = _family(settings)
    config = family.read_config(settings)
    weights = family.weights(config, theirs)
    tokenizer = load_tokenizer(folder) if (folder / "tokenizer.json").exists() else None
    name = f"Hugging Face {family.model_type}"
    return ExternalCheckpoint(name, folder, config, weights, tokenizer, _chat_template(folder))


def gpt_from_huggingface(settings: Settings, weights: Mapping[str, Tensor]) -> GPT:
    """Build a GPT in eval mode from the contents of config.json and a state_dict."""
    if not (isinstance(settings, Mapping) and isinstance(weights, Mapping)) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    ):
        raise WeightsError("expected a dict of settings and a state_dict of tensors")
    family = _family(settings)
    config = family.read_config(settings)
    return model_from_weights(config, family.weights(config, weights), copy=True)


def _family(settings: Settings) -> Family:
    kind, known = settings.get("model_type"), families()
    if not isinstance(kind, str) or kind not in known:
        raise WeightsError(f"unsupported model_type {kind!r:.80}\nfix: use one of {', '.join(known)}")
    return known[kind]


def _chat_template(folder: Path) -> str | None:
    """The template of a conversation: a file of its own, or in tokenizer_config.json, perhaps among others by name."""
    path = folder / _TEMPLATE_NAME
    if path.exists():
        with open_regular(path) as file:
            try:
                return read_limited(file, path, _MAX_TEMPLATE_BYTES).decode()
            except UnicodeDecodeError:
                raise FileError(f"{path} is not UTF-8\nfix: {_FIX}") from None
    path = folder / "tokenizer_config.json"
    if not path.exists():
        return None
    found = read_json(path, dict[str, Any], fix=_FIX, error=FileError).get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        raise FileError(f"{path} has a chat_template that is no text: {found!r:.80}\nfix: {_FIX}")
    return found
