"""Tokenizers as in the folders of the families: their algorithms on a vocabulary trained here."""

from collections.abc import Callable
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer

TEXT = "It's 1984, and the theme of the thesis isn't 12345 then; Straße naïve  tabs\tand\n\nlines don't DON'T. " * 3
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_SPACE = normalizers.Replace(" ", "▁")
_PREFIX: Any = normalizers.Sequence([normalizers.Prepend("▁"), _SPACE])
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece(
    normalizer: Any, splitter: Any, *, strips: bool = False, added: tuple[str, ...] = ()
) -> tokenizers.Tokenizer:
    """BPE with byte fallback; every split of a token is a merge, in the order of the tokens."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("▁*[^▁]+"), "isolated")
    trained.train_from_iterator([TEXT.replace(" ", "▁")], trainers.BpeTrainer(vocab_size=120, show_progress=False))
    special = ["<unk>", "<s>", "</s>"]
    pieces = sorted(trained.get_vocab(), key=lambda piece: trained.get_vocab()[piece])
    ids = {piece: i for i, piece in enumerate([*special, *_BYTES, *pieces])}
    merges = [
        (piece[:end], piece[end:])
        for piece in pieces
        for end in range(1, len(piece))
        if piece[:end] in ids and piece[end:] in ids
    ]
    library = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.normalizer, library.pre_tokenizer = normalizer, splitter
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    library.add_special_tokens(special)
    library.add_tokens([AddedToken(name, normalized=False) for name in added])
    library.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)])
    return library


def byte_level(*splitters: Any, normalizer: Any = None, ignore_merges: bool = False) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Sequence(list(splitters)), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|endoftext|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([TEXT], trainer)
    library.normalizer = normalizer
    return library


def _split(pattern: str) -> list[Any]:
    return [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


_GPT_2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
_AFTER_SPACE: Any = pre_tokenizers.Split(" ", "merged_with_previous")
_METASPACE: Any = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)

LIBRARIES: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "gemma": lambda: sentencepiece(_SPACE, _AFTER_SPACE, added=("<custom>", "<h1>")),
    "phi3": lambda: sentencepiece(_PREFIX, None, strips=True, added=("<custom>",)),
    "mistral": lambda: sentencepiece(None, _METASPACE, strips=True),
    "gpt_neox": lambda: byte_level(_GPT_2, normalizer=normalizers.NFC()),
    "smollm": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True), _GPT_2),
    "llama3": lambda: byte_level(*_split(_LLAMA_3), ignore_merges=True),
    "olmo2": lambda: byte_level(*_split(_LLAMA_3)),
    "qwen2": lambda: byte_level(*_split(_LLAMA_3.replace("{1,3}", "")), normalizer=normalizers.NFC()),
}


def library_tokenizer(name: str) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(LIBRARIES[name]())
