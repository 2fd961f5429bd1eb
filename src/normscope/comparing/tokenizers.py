"""Compare two tokenizers on random Unicode, by classes of strings: ids, and the text decoded from them."""

import random
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

SAMPLES, LENGTH = 40, 24
"""Strings per class, and the number of characters of a long one."""


class Encoder(Protocol):
    """What is compared of a `Runtime`, or of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class StringClass:
    """How two tokenizers differ on a class of strings.

    Args:
        name: the class, such as "digits".
        strings: number of strings.
        ids, texts: number of strings whose ids differ, and whose text decoded from the same ids differs.
        refused: number of strings that only one side can encode.
        failed: the strings that differ, the shortest first.
        example: the first of them, and what the two sides make of it.
    """

    name: str
    strings: int
    ids: int
    texts: int
    refused: int
    failed: tuple[str, ...]
    example: str

    @property
    def differs(self) -> bool:
        return bool(self.ids or self.texts or self.refused)


@dataclass(frozen=True)
class TokenizerDiff:
    """How two tokenizers differ, by classes of strings."""

    classes: tuple[StringClass, ...]

    @property
    def differing(self) -> tuple[StringClass, ...]:
        return tuple(one for one in self.classes if one.differs)

    @property
    def differs(self) -> bool:
        return bool(self.differing)


def compare_tokenizers(
    a: Encoder, b: Encoder, *, vocab_size: int, special: Sequence[str] = (), samples: int = SAMPLES, seed: int = 0
) -> TokenizerDiff:
    """Send random strings through both tokenizers.

    Args:
        a, b: the tokenizers.
        vocab_size: number of tokens of `a`, from which one class of strings is made.
        special: names of special tokens, which are ordinary text to `encode`.
        samples: strings per class.
        seed: random seed.
    """
    rng = random.Random(seed)
    makers: dict[str, Callable[[random.Random], str]] = {
        "text of the vocabulary": lambda rng: a.decode([rng.randrange(vocab_size) for _ in range(rng.randint(1, 8))]),
        **STRING_CLASSES,
    }
    if special:
        makers["names of special tokens"] = lambda rng: _letters(rng) + rng.choice(list(special)) + _letters(rng)
    return TokenizerDiff(
        tuple(_compare_class(name, [make(rng) for _ in range(samples)], a, b) for name, make in makers.items())
    )


def _compare_class(name: str, texts: Sequence[str], a: Encoder, b: Encoder) -> StringClass:
    counts = {"ids": 0, "texts": 0, "refused": 0}
    examples: dict[str, str] = {}
    for text in sorted(texts, key=len):
        ours, theirs = _encoded(a, text), _encoded(b, text)
        if ours is None and theirs is None:
            continue
        if ours is None or theirs is None:
            counts["refused"] += 1
            examples[text] = f"the {'first' if ours is None else 'second'} cannot encode it"
        elif ours != theirs:
            counts["ids"] += 1
            examples[text] = f"{_excerpt(ours)} and {_excerpt(theirs)}"
        elif (back := a.decode(ours)) != (other := b.decode(theirs)):
            counts["texts"] += 1
            examples[text] = f"the same ids are {back!a} and {other!a}"
    example = next((f"{text!a}: {problem}" for text, problem in examples.items()), "")
    return StringClass(name, len(texts), **counts, failed=tuple(examples), example=example)


def _encoded(tokenizer: Encoder, text: str) -> list[int] | None:
    try:
        return [int(token) for token in tokenizer.encode(text)]
    except Exception:  # every tool raises its own errors for text that it cannot encode
        return None


def _excerpt(ids: Sequence[int], longest: int = 8) -> str:
    return f"[{', '.join(map(str, ids[:longest]))}{', ...' if len(ids) > longest else ''}]"


def _from(alphabet: str, longest: int = LENGTH) -> Callable[[random.Random], str]:
    return lambda rng: "".join(rng.choices(alphabet, k=rng.randint(1, longest)))


def _range(*bounds: tuple[int, int]) -> str:
    """All assigned characters in these ranges of code points."""
    return "".join(
        chr(code)
        for first, last in bounds
        for code in range(first, last + 1)
        if unicodedata.category(chr(code)) != "Cn"
    )


_letters = _from("abcdefghijklmnopqrstuvwxyz ABCDE")
_ACCENTED = _range((0xC0, 0x17F))


def _words(rng: random.Random) -> str:
    return rng.choice(["", " ", "  "]).join(_letters(rng) for _ in range(3))


def _contractions(rng: random.Random) -> str:
    endings = ("'s", "'t", "'re", "'VE", "\N{RIGHT SINGLE QUOTATION MARK}s", "'", "''", "'d2")
    return " ".join(_from("aeiourst", 5)(rng) + rng.choice(endings) for _ in range(3))


def _anything(rng: random.Random) -> str:
    codes = (rng.randrange(0x110000) for _ in range(rng.randint(1, LENGTH)))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)  # no lone surrogates


_EMOJI = ["😀", "👩\u200d💻", "👍🏽", "🇫🇷", "❤\ufe0f", "1\ufe0f\u20e3", "🏳\ufe0f\u200d🌈"]

STRING_CLASSES: Mapping[str, Callable[[random.Random], str]] = {
    "English": _words,
    "contractions": _contractions,
    "digits": _from("0123456789 .,-"),
    "spaces and line ends": _from(" \t\n\r\u00a0ab"),
    "leading spaces": lambda rng: " " * rng.randint(1, 5) + _letters(rng),
    "punctuation and code": _from("(){}[]<>=+-*/_'\"#;:\\|`~!? abc01\n"),
    "accented letters": _from(_ACCENTED),
    "decomposed accents": lambda rng: unicodedata.normalize("NFD", _from(_ACCENTED)(rng)),
    "full width and ligatures": _from(_range((0xFF01, 0xFF5E), (0xFB00, 0xFB06), (0x2460, 0x2473))),
    "Greek and Cyrillic": _from(_range((0x391, 0x3C9), (0x410, 0x44F)) + " "),
    "Chinese and Japanese": _from(_range((0x4E00, 0x4FFF), (0x3041, 0x3096)) + "。、"),
    "Korean, composed and not": lambda rng: unicodedata.normalize(
        rng.choice(["NFC", "NFD"]), _from(_range((0xAC00, 0xB000)))(rng)
    ),
    "Arabic, Hebrew, Hindi, Thai": _from(_range((0x5D0, 0x5EA), (0x621, 0x652), (0x905, 0x94D), (0xE01, 0xE4D)) + " "),
    "emoji": lambda rng: "".join(rng.choices(_EMOJI, k=rng.randint(1, 5))),
    "control and invisible characters": _from(_range((0x0, 0x1F), (0x7F, 0x9F)) + "\u200b\u200e\u2028\ufeff\ufffd"),
    "any code point": _anything,
}
"""Makers of random strings, by class."""
