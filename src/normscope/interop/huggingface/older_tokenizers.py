"""Tokenizers of folders without tokenizer.json: tokenizer.model of SentencePiece, or GPT-2's vocab.json and merges.txt.

Both become the metadata that a GGUF file has, whose kinds of tokens are those of SentencePiece.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer
from normscope.data.tokenizers.load import ModelTokens
from normscope.data.tokenizers.template_settings import TemplateSettings, read_template_settings
from normscope.errors import FileError, NormscopeError
from normscope.interop.gguf.tokenizer import read_gguf_tokenizer
from normscope.storage.files import open_regular, read_limited
from normscope.storage.json_files import read_json

SENTENCEPIECE, VOCABULARY, MERGES, ADDED = "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json"
_FIX = "write a tokenizer.json with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
_NORMAL, _CONTROL = 1, 3
_BPE = 2
_FORMS = {0: "<Q", 1: "<d", 5: "<f"}


def read_older_tokenizer(folder: Path, model_type: object, model: ModelTokens) -> HuggingFaceTokenizer | None:
    """Read the tokenizer of a folder without tokenizer.json; None if it has none that can be read."""
    settings = read_template_settings(folder)
    if (folder / SENTENCEPIECE).is_file():
        path, read = folder / SENTENCEPIECE, _sentencepiece
    elif model_type == "gpt2" and (folder / VOCABULARY).is_file() and (folder / MERGES).is_file():
        path, read = folder / VOCABULARY, _byte_pairs
    else:
        return None
    try:
        metadata = read(path, settings, model.largest_file)
        _add_tokens(folder / ADDED, metadata, model.vocab_size)
        ids = {token: i for i, token in enumerate(metadata["tokens"])}
        metadata["eos_token_id"] = ids.get(settings.eos_token or "", model.eos_token_id)
        metadata = {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}
        tokenizer = read_gguf_tokenizer(metadata, model.vocab_size)
    except (NormscopeError, ValueError, TypeError) as error:
        problem = str(error).partition("\nfix: ")[0]
        raise FileError(f"{path} cannot be read: {problem}\nfix: {_FIX}") from error
    assert tokenizer is not None
    settings.apply(tokenizer)
    return tokenizer


def _byte_pairs(path: Path, settings: TemplateSettings, max_bytes: int) -> dict[str, Any]:
    ids = read_json(path, dict[str, int], fix=_FIX, max_bytes=max_bytes)
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(ids))):
        raise ValueError("its ids have gaps")
    with open_regular(path.parent / MERGES) as file:
        lines = read_limited(file, path.parent / MERGES, max_bytes).decode("utf-8", "replace").splitlines()
    special = {"<|endoftext|>", *settings.tokens.values()}
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [_CONTROL if token in special else _NORMAL for token in tokens],
        "merges": [line for line in lines if not line.startswith("#version")],
    }


def _sentencepiece(path: Path, settings: TemplateSettings, max_bytes: int) -> dict[str, Any]:
    with open_regular(path) as file:
        content = list(_fields(read_limited(file, path, max_bytes)))
    pieces = [dict(_fields(_message(value))) for number, value in content if number == 1]
    trainer, normalizer = (
        {name: value for number, part in content if number == place for name, value in _fields(_message(part))}
        for place in (2, 3)
    )
    if trainer.get(3, 1) != _BPE:
        raise ValueError("it is not a BPE model of SentencePiece")
    if normalizer.get(2) or normalizer.get(4, 1):
        raise ValueError("it normalizes texts")
    return {
        "model": "llama",
        "tokens": [_message(piece.get(1, b"")).decode() for piece in pieces],
        "scores": [piece.get(2, 0.0) for piece in pieces],
        "token_type": [piece.get(3, _NORMAL) for piece in pieces],
        "add_space_prefix": bool(normalizer.get(3, 1)),
        "bos_token_id": trainer.get(41, 1),
    }


def _add_tokens(path: Path, metadata: dict[str, Any], vocab_size: int) -> None:
    """Add the tokens of added_tokens.json, whose ids follow those of the vocabulary."""
    if not path.is_file():
        return
    added = read_json(path, dict[str, int], fix=_FIX)
    tokens = metadata["tokens"]
    for name in sorted(added, key=added.__getitem__):
        if len(tokens) == added[name] < vocab_size:
            tokens.append(name)
            metadata["token_type"].append(_CONTROL)
            metadata.setdefault("scores", []).append(0.0)
        elif added[name] < vocab_size and tokens[added[name] : added[name] + 1] != [name]:
            raise ValueError(f"{path.name} has {name!r:.60} at {added[name]}, which is not its place")


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and values of the fields of a message of Protocol Buffers."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if kind == 2:
            size, position = _varint(data, position)
        else:
            size = struct.calcsize(_FORMS.get(kind, ""))
        part, position = data[position : position + size], position + size
        if position > len(data) or (size == 0 and kind != 2):
            raise ValueError("it is damaged")
        yield key >> 3, part if kind == 2 else struct.unpack(_FORMS[kind], part)[0]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """An integer of 7 bits a byte, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("it is damaged")


def _message(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("it is damaged")
    return value
