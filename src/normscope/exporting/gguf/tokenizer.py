"""Our tokenizers as llama.cpp's byte-level BPE ("gpt2"), with the same ids.

| ours       | theirs                                                                                    |
|------------|-------------------------------------------------------------------------------------------|
| bpe        | the same vocabulary and merges; the splitting into words is known by a name               |
| bytes      | 256 tokens, and one merge that never applies: without merges llama.cpp refuses the file   |
| characters | merges join the bytes of each character; unknown characters are dropped without a message |
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from normscope.data.tokenizers import ByteTokenizer, Tokenizer
from normscope.data.tokenizers.base import EOS_TOKEN
from normscope.errors import ConfigError
from normscope.exporting.library_tokenizer import OWN_CHARACTERS, eos_of, library_json

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Kinds of tokens in GGUF."""

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPLITTERS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (GPT2_PATTERN,),
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    ),
    "smollm": (r"digits", GPT2_PATTERN),
}
"""How llama.cpp calls the regular expressions that split a text into words."""


@dataclass(frozen=True)
class GGUFTokenizer:
    """The tokenizer of a GGUF file.

    Args:
        tokens, kinds: name and kind of each token.
        merges: pairs of tokens, joined by a space.
        splitter: llama.cpp's name of the splitting into words.
        eos: id of the end-of-text token.
        start: id of the token that stands before every text; None if there is none.
    """

    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    splitter: str
    eos: int | None
    start: int | None = None


def gguf_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> GGUFTokenizer:
    """Return the tokenizer of a GGUF file; a model with a padded vocabulary has unused tokens at its end.

    >>> from normscope.data.tokenizers import CharacterTokenizer
    >>> found = gguf_tokenizer(CharacterTokenizer("aé"), 4)
    >>> found.tokens, found.kinds, found.merges
    (['a', 'Ã©', '<|end|>', '<unused 3>'], [1, 1, 3, 5], ['Ã ©'])
    """
    eos = eos_of(tokenizer)
    if isinstance(tokenizer, OWN_CHARACTERS):
        vocabulary, merges, splitter = _characters(tokenizer.alphabet, eos)
        special: Mapping[int, int] = {} if eos is None else {eos: CONTROL}
    else:
        content = json.loads(library_json(tokenizer))
        splitter = "gpt-2" if isinstance(tokenizer, ByteTokenizer) else _splitter(content)
        vocabulary = dict(content["model"]["vocab"])
        merges = [one if isinstance(one, str) else " ".join(one) for one in content["model"]["merges"]]
        added = content["added_tokens"]
        vocabulary |= {one["content"]: one["id"] for one in added}
        special = {one["id"]: CONTROL if one["special"] else USER_DEFINED for one in added}
    names = {token: name for name, token in vocabulary.items()}
    return GGUFTokenizer(
        tokens=[names.get(i, f"<unused {i}>") for i in range(vocab_size)],
        kinds=[special.get(i, NORMAL) if i in names else UNUSED for i in range(vocab_size)],
        merges=merges or [f"{EOS_TOKEN} {EOS_TOKEN}"],  # its left side is never a piece of text
        splitter=splitter,
        eos=eos,
        start=next(iter(tokenizer.start_tokens), None),
    )


def _characters(alphabet: str, eos: int | None) -> tuple[dict[str, int], list[str], str]:
    """Vocabulary, merges and splitter. A merge never joins two characters: it starts with the first byte of one."""
    from normscope.data.tokenizers.huggingface import bytes_to_unicode

    table = bytes_to_unicode()
    spelled = ["".join(table[byte] for byte in character.encode()) for character in alphabet]
    merges = {f"{name[:end]} {name[end]}": None for name in spelled for end in range(1, len(name))}
    vocabulary = {name: token for token, name in enumerate(spelled)}
    if eos is not None:
        vocabulary[EOS_TOKEN] = eos
    return vocabulary, list(merges), "gpt-2"


def _splitter(content: Mapping[str, Any]) -> str:
    """The name of the splitting of a tokenizer.json; raises for a tokenizer that llama.cpp does not have."""
    model = content["model"]
    for name, value, allowed in (
        ("model.type", model.get("type", "BPE"), ("BPE",)),
        ("model.byte_fallback", model.get("byte_fallback", False), (False,)),
        ("normalizer", (content.get("normalizer") or {}).get("type"), (None,)),
        ("decoder", (content.get("decoder") or {}).get("type"), ("ByteLevel",)),
    ):
        if value not in allowed:
            raise _unsupported(f"{name}={value!r:.60}")
    patterns = tuple(_patterns(content.get("pre_tokenizer") or {}))
    found = next((name for name, known in SPLITTERS.items() if known == patterns), None)
    if found is None:
        raise _unsupported(f"pre_tokenizer={patterns!r:.200}")
    return found


def _patterns(splitter: Mapping[str, Any]) -> Iterator[str]:
    """The regular expressions of a pre-tokenizer, one after the other."""
    match splitter:
        case {"type": "Sequence", "pretokenizers": [*parts]}:
            for part in parts:
                yield from _patterns(part)
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}:
            pass
        case {"type": "ByteLevel", "add_prefix_space": False}:
            yield GPT2_PATTERN
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated"}:
            yield pattern
        case {"type": "Digits", "individual_digits": True}:
            yield "digits"
        case _:
            yield json.dumps(splitter)


def _unsupported(what: str) -> ConfigError:
    return ConfigError(
        f"llama.cpp cannot run a tokenizer with {what}\n"
        f"fix: train with --tokenizer bpe, characters or bytes, or use --to hf or --to onnx"
    )
