"""Read Hugging Face checkpoints. `normscope.interop.huggingface.families` has one file per family.

Reads only JSON and safetensors; transformers is not required.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from normscope.checks import as_path, is_integer
from normscope.data.tokenizers.load import ModelTokens, load_tokenizer
from normscope.errors import FileError, WeightsError
from normscope.interop.checkpoint import ExternalCheckpoint, check_tables, model_from_weights
from normscope.interop.files.safetensors_file import open_sharded
from normscope.interop.huggingface.families import families
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.older_tokenizers import read_older_tokenizer
from normscope.interop.huggingface.settings import Settings
from normscope.interop.huggingface.text_parts import TEXT_PARTS, text_model
from normscope.models.gpt import GPT
from normscope.storage.json_files import MIB, read_json

MAX_CONFIG_BYTES = MIB
"""Limit of config.json, which has a few KiB."""
_CONTEXT = "max_position_embeddings"
_FIX = "download it again, or load it with transformers and call save_pretrained"


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
    path = folder / "config.json"
    settings: Settings = read_json(path, dict[str, Any], fix=_FIX, error=WeightsError, max_bytes=MAX_CONFIG_BYTES)
    name = f"Hugging Face {settings.get('model_type')}"
    settings, theirs, notices = text_model(settings, open_sharded(folder))
    family = _family(settings)
    config = family.read_config(settings)
    if is_integer(longest := settings.get(_CONTEXT), least=config.context + 1):
        beyond = "longer texts have other rotary frequencies (LongRoPE), which are left out"
        notices = (*notices, f"the context is {config.context:,} tokens instead of {longest:,}: {beyond}")
    weights = family.weights(config, theirs)
    tokens = ModelTokens(config.vocab_size, _eos_token_id(settings))
    has_json = (folder / "tokenizer.json").exists()
    tokenizer = load_tokenizer(folder, tokens) if has_json else read_older_tokenizer(folder, family.model_type, tokens)
    template = None
    if tokenizer is not None:
        notices = tokenizer.notices = (*notices, *tokenizer.notices)
        template = tokenizer.chat_template
    return ExternalCheckpoint(name, folder, config, weights, tokenizer, template, notices, _CONTEXT)


def gpt_from_huggingface(settings: Settings, weights: Mapping[str, Tensor]) -> GPT:
    """Build a GPT in eval mode from the contents of config.json and a state_dict."""
    if not (isinstance(settings, Mapping) and isinstance(weights, Mapping)) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    ):
        raise WeightsError("expected a dict of settings and a state_dict of tensors")
    settings, weights, _ = text_model(settings, weights)
    family = _family(settings)
    config = family.read_config(settings)
    check_tables(config, weights, _CONTEXT)
    return model_from_weights(config, family.weights(config, weights).copies())


def _family(settings: Settings) -> Family:
    kind, known = settings.get("model_type"), families()
    if not isinstance(kind, str) or kind not in known:
        raise WeightsError(f"unsupported model_type {kind!r:.80}\nfix: use one of {', '.join([*known, *TEXT_PARTS])}")
    return known[kind]


def _eos_token_id(settings: Settings) -> int | None:
    """The end-of-text token; of several, which chat models have, the first."""
    found = settings.get("eos_token_id")
    first = next(iter(found), None) if isinstance(found, list) else found
    return first if is_integer(first, least=0) else None
