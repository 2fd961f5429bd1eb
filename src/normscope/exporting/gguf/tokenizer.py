"""Our tokenizers as llama.cpp's, with the same ids.

| ours                   | theirs                                                                                   |
|------------------------|------------------------------------------------------------------------------------------|
| byte-level bpe         | "gpt2": the same vocabulary and merges; the splitting into words is known by a name       |
| bpe with byte fallback | "llama": a score for each token instead of merges                                        |
| bytes                  | "gpt2": 256 tokens, and one merge that never applies: without merges llama.cpp refuses it |
| characters             | "gpt2": merges join the bytes of each character; unknown characters are dropped           |
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from normscope.comparing.tokenizers import StringClass
from normscope.data.tokenizers import ByteTokenizer, Tokenizer
from normscope.data.tokenizers.base import EOS_TOKEN
from normscope.data.tokenizers.huggingface import bytes_to_unicode
from normscope.errors import ConfigError
from normscope.exporting.gguf import sentencepiece
from normscope.exporting.library_tokenizer import OWN_CHARACTERS, eos_of, library_json
from normscope.interop.gguf.tokenizer import (
    BYTE,
    CONTROL,
    GPT_2,
    GPT_2_WRITTEN_OUT,
    NORMAL,
    NUMBER,
    SPLITTERS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Splitter,
)


@dataclass(frozen=True)
class GGUFTokenizer:
    """The tokenizer of a GGUF file.

    Args:
        model: llama.cpp's name of the algorithm, "gpt2" or "llama".
        tokens, kinds: name and kind of each token.
        eos: id of the end-of-text token.
        start: id of the token that stands before every text; None if there is none.
        own: what only this algorithm needs, by the keys of the metadata.
    """

    model: str
    tokens: list[str]
    kinds: list[int]
    eos: int | None
    start: int | None = None
    own: Mapping[str, Any] = field(default_factory=dict)

    def metadata(self) -> dict[str, Any]:
        """The metadata, by the keys after "tokenizer.ggml"."""
        # Without a token for the start, a document starts after the end of the one before, and prompts start without
        # it, as in `normscope sample`.
        found = {
            "model": self.model,
            "tokens": self.tokens,
            "token_type": self.kinds,
            **self.own,
            "bos_token_id": self.eos if self.start is None else self.start,
            "eos_token_id": self.eos,
            "unknown_token_id": self.kinds.index(UNKNOWN) if UNKNOWN in self.kinds else None,
            "add_bos_token": self.start is not None,
        }
        return {key: value for key, value in found.items() if value is not None}


def gguf_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> GGUFTokenizer:
    """Return the tokenizer of a GGUF file; a model with a padded vocabulary has unused tokens at its end.

    >>> from normscope.data.tokenizers import CharacterTokenizer
    >>> found = gguf_tokenizer(CharacterTokenizer("aé"), 4)
    >>> found.tokens, found.kinds, found.own["merges"]
    (['a', 'Ã©', '<|end|>', '<unused 3>'], [1, 1, 3, 5], ['Ã ©'])
    """
    eos = eos_of(tokenizer)
    if isinstance(tokenizer, OWN_CHARACTERS):
        vocabulary, merges = _characters(tokenizer.alphabet, eos)
        kinds: dict[int, int] = {} if eos is None else {eos: CONTROL}
        model, own = "gpt2", _byte_level("gpt-2", merges)
    else:
        content = _content(tokenizer)
        vocabulary, merges = _bpe(content)
        kinds = {one["id"]: CONTROL if one["special"] else USER_DEFINED for one in content["added_tokens"]}
        if content["model"].get("byte_fallback"):
            model, own = "llama", _sentencepiece(content, vocabulary, merges, vocab_size)
            kinds |= _byte_kinds(content, vocabulary)
        else:
            is_bytes = isinstance(tokenizer, ByteTokenizer)
            model, own = "gpt2", _byte_level("gpt-2" if is_bytes else _splitter(content), merges)
    names = {token: name for name, token in vocabulary.items()}
    return GGUFTokenizer(
        model=model,
        tokens=[names.get(i, f"<unused {i}>") for i in range(vocab_size)],
        kinds=[kinds.get(i, NORMAL) if i in names else UNUSED for i in range(vocab_size)],
        eos=eos,
        start=next(iter(tokenizer.start_tokens), None),
        own=own,
    )


def check_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise a ConfigError if llama.cpp has no equal tokenizer."""
    found = gguf_tokenizer(tokenizer, vocab_size)
    if found.model == "llama":
        metadata = {f"tokenizer.ggml.{key}": value for key, value in found.metadata().items()}
        for one in sentencepiece.differing(tokenizer, metadata):
            if known_difference(one, tokenizer) is None:
                raise _unsupported(f"model.merges that scores of tokens cannot replace: they give {one.example:.200}")


def known_difference(one: StringClass, tokenizer: Tokenizer) -> str | None:
    """Why llama.cpp may encode some strings differently; None if it may not."""
    if isinstance(tokenizer, OWN_CHARACTERS):
        dropped = not one.ids and not one.texts
        return _DROPPED if dropped else None
    if isinstance(tokenizer, ByteTokenizer):
        return None
    content = _content(tokenizer)
    if _type(content, "normalizer") == "NFC" and not any(unicodedata.is_normalized("NFC", text) for text in one.failed):
        return "llama.cpp does not compose accents (NFC) first, as the tokenizer does"
    if _type(content, "pre_tokenizer") == "Metaspace" and all(text.startswith((" ", "\u2581")) for text in one.failed):
        return "llama.cpp puts a space before a text that starts with one, too"
    return None


_DROPPED = "llama.cpp drops characters that the tokenizer does not know, where normscope raises an error"


@lru_cache(maxsize=1)
def _content(tokenizer: Tokenizer) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(library_json(tokenizer))
    return content


def _type(content: Mapping[str, Any], part: str) -> str | None:
    found = (content.get(part) or {}).get("type")
    return None if found is None else str(found)


def _characters(alphabet: str, eos: int | None) -> tuple[dict[str, int], list[str]]:
    """Vocabulary and merges. A merge never joins two characters: it starts with the first byte of one."""
    table = bytes_to_unicode()
    spelled = ["".join(table[byte] for byte in character.encode()) for character in alphabet]
    merges = {f"{name[:end]} {name[end]}": None for name in spelled for end in range(1, len(name))}
    vocabulary = {name: token for token, name in enumerate(spelled)}
    if eos is not None:
        vocabulary[EOS_TOKEN] = eos
    return vocabulary, list(merges)


def _byte_level(splitter: str, merges: list[str]) -> dict[str, Any]:
    # The left side of the merge in place of none is never a piece of text.
    return {"pre": splitter, "merges": merges or [f"{EOS_TOKEN} {EOS_TOKEN}"]}


def _bpe(content: Mapping[str, Any]) -> tuple[dict[str, int], list[str]]:
    """Vocabulary and merges of a tokenizer.json."""
    model = content["model"]
    _expect("model.type", model.get("type", "BPE"), "BPE")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        _expect(f"model.{name}", model.get(name) or None, None)
    vocabulary = {str(name): int(token) for name, token in model["vocab"].items()}
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
    return vocabulary | {one["content"]: one["id"] for one in content["added_tokens"]}, merges


def _sentencepiece(
    content: Mapping[str, Any], vocabulary: Mapping[str, int], merges: list[str], size: int
) -> dict[str, Any]:
    prefix = sentencepiece.space_prefix(content)
    if prefix is None:
        parts = ", ".join(f"{name}={json.dumps(content.get(name)):.100}" for name in ("normalizer", "pre_tokenizer"))
        raise _unsupported(f"byte fallback and {parts}")
    _expect("decoder", _type(content, "decoder"), "Sequence")
    _expect("model.ignore_merges", bool(content["model"].get("ignore_merges")), False)
    _expect("model.vocab without", next((one for one in sentencepiece.BYTES if one not in vocabulary), None), None)
    scores = sentencepiece.scores(vocabulary, merges, size)
    return {"pre": "default", "scores": scores, "add_space_prefix": prefix}


def _byte_kinds(content: Mapping[str, Any], vocabulary: Mapping[str, int]) -> dict[int, int]:
    unknown = content["model"].get("unk_token")
    found = {vocabulary[name]: BYTE for name in sentencepiece.BYTES}
    return found if unknown not in vocabulary else {**found, vocabulary[unknown]: UNKNOWN}


def _splitter(content: Mapping[str, Any]) -> str:
    """The name of the splitting of a byte-level tokenizer.json."""
    _expect("normalizer", _type(content, "normalizer"), None, "NFC")
    _expect("decoder", _type(content, "decoder"), "ByteLevel")
    ignores_merges = bool(content["model"].get("ignore_merges"))
    splitter = Splitter(tuple(_patterns(content.get("pre_tokenizer") or {})), ignores_merges)
    found = next((name for name, known in SPLITTERS.items() if known == splitter), None)
    if found is None:
        also = " and model.ignore_merges=True" * ignores_merges
        raise _unsupported(f"pre_tokenizer={splitter.patterns!r:.200}{also}")
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
            yield GPT_2
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated"}:
            yield GPT_2 if pattern in GPT_2_WRITTEN_OUT else pattern
        case {"type": "Digits", "individual_digits": True}:
            yield NUMBER
        case _:
            yield json.dumps(splitter)


def _expect(name: str, value: Any, *allowed: Any) -> None:
    if value not in allowed:
        raise _unsupported(f"{name}={value!r:.60}")


def _unsupported(what: str) -> ConfigError:
    return ConfigError(
        f"llama.cpp cannot run a tokenizer with {what}\n"
        f"fix: train with --tokenizer bpe, characters or bytes, such as `normscope train --preset llama`, or use "
        f"--to hf or --to onnx"
    )
