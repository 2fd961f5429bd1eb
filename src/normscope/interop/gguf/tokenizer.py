"""The tokenizer in a GGUF file as one of Hugging Face's library, with the same ids."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer
from normscope.errors import WeightsError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens in tokenizer.ggml.token_type."""
_LONGEST_TOKEN = 256
_MAX_SPLITS = 2**23
"""Limit of the characters of all tokens, each of which is a possible split."""
SPACE = "\u2581"
"""What stands for a space in SentencePiece."""

NUMBER = r"\p{N}"
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN_2 = _LLAMA_3.replace(r"\p{N}{1,3}", NUMBER)
GPT_2 = "GPT-2"
"""Stands for the regular expression that the library has built in."""
_AFTER_CONTRACTIONS = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT_2_WRITTEN_OUT = tuple(
    f"{contractions}|{_AFTER_CONTRACTIONS}" for contractions in ("'s|'t|'re|'ve|'m|'ll|'d", "'(?:[sdmt]|ll|ve|re)")
)


class Splitter(NamedTuple):
    """How a text is split before merging.

    Args:
        patterns: regular expressions, one after the other.
        ignores_merges: whether a word that is a token is one, even if no merges lead to it.
    """

    patterns: tuple[str, ...]
    ignores_merges: bool = False


SPLITTERS = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais"), Splitter((GPT_2,))),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), Splitter((_LLAMA_3,), True)),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Splitter((_LLAMA_3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), Splitter((_QWEN_2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), Splitter((NUMBER, GPT_2))),
    "default": Splitter((r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")),
}
"""By tokenizer.ggml.pre."""
_STARTS_BY_DEFAULT = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral")


class _Vocabulary(msgspec.Struct, rename=lambda name: f"tokenizer.ggml.{name}"):
    """The metadata of a tokenizer."""

    model: str
    tokens: list[str]
    token_type: list[int] = []
    scores: list[float] = []
    merges: list[str] = []
    pre: str = "default"
    add_space_prefix: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    add_bos_token: bool | None = None

    def name_of(self, token: int | None) -> str | None:
        return self.tokens[token] if token is not None and 0 <= token < len(self.tokens) else None


def read_gguf_tokenizer(metadata: Mapping[str, Any], vocab_size: int | None = None) -> HuggingFaceTokenizer | None:
    """The tokenizer in the metadata of a GGUF file, for a model of this vocabulary; None if it has none."""
    if metadata.get("tokenizer.ggml.model", "no_vocab") in ("no_vocab", "none"):
        return None
    try:
        vocabulary = msgspec.convert(dict(metadata), _Vocabulary)
    except msgspec.ValidationError as error:
        raise WeightsError(f"its tokenizer is not valid: {error}") from None
    if vocab_size is not None and len(vocabulary.tokens) > vocab_size:
        sizes = f"{len(vocabulary.tokens):,} tokens, but the model {vocab_size:,} embeddings"
        raise WeightsError(f"its tokenizer has {sizes}")
    for name in ("token_type", "scores"):
        if len(getattr(vocabulary, name)) not in (0, len(vocabulary.tokens)):
            raise WeightsError(f"tokenizer.ggml.{name} has another length than tokenizer.ggml.tokens")
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    if len(ids) != len(vocabulary.tokens):
        raise WeightsError("tokenizer.ggml.tokens has a token twice")
    if max(map(len, ids), default=0) > 2**16 or sum(map(len, ids)) > _MAX_SPLITS:
        raise WeightsError("tokenizer.ggml.tokens has tokens of absurd length")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if vocabulary.model not in builders:
        known = " or ".join(builders)
        raise WeightsError(f"unsupported metadata tokenizer.ggml.model={vocabulary.model!r:.80}: expected {known}")
    library = builders[vocabulary.model](vocabulary, ids)
    for kind, token in zip(vocabulary.token_type, vocabulary.tokens, strict=False):
        if kind in (CONTROL, USER_DEFINED):
            is_special = kind == CONTROL
            added = AddedToken(token, normalized=False, special=is_special)
            (library.add_special_tokens if is_special else library.add_tokens)([added])
    _add_start(vocabulary, library)
    return HuggingFaceTokenizer(library, vocabulary.name_of(vocabulary.eos_token_id), is_complete=True)


def _add_start(vocabulary: _Vocabulary, library: tokenizers.Tokenizer) -> None:
    """Put the token for the start before every text, where llama.cpp does; the default depends on the model."""
    name, is_on = vocabulary.name_of(vocabulary.bos_token_id), vocabulary.add_bos_token
    if is_on is None:
        is_on = vocabulary.model == "llama" or vocabulary.pre in _STARTS_BY_DEFAULT
    if is_on and name is not None:
        library.post_processor = processors.TemplateProcessing(
            single=[name, "$A"], pair=[name, "$A", "$B"], special_tokens=[(name, vocabulary.bos_token_id)]
        )


def _byte_level(vocabulary: _Vocabulary, ids: Mapping[str, int]) -> tokenizers.Tokenizer:
    """Byte-level BPE, as of GPT-2."""
    if vocabulary.pre not in SPLITTERS:
        known = ", ".join(SPLITTERS)
        raise WeightsError(f"unsupported metadata tokenizer.ggml.pre={vocabulary.pre!r:.80}: expected one of {known}")
    splitter = SPLITTERS[vocabulary.pre]
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)]
    merges = [(left, right) for left, right in pairs if left in ids and right in ids and left + right in ids]
    library = tokenizers.Tokenizer(models.BPE(dict(ids), merges, ignore_merges=splitter.ignores_merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([*map(_split, splitter.patterns), byte_level])
    library.decoder = decoders.ByteLevel()
    return library


def _split(pattern: str) -> Any:
    if pattern == GPT_2:
        return pre_tokenizers.Split(Regex(GPT_2_WRITTEN_OUT[0]), "isolated")
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _sentencepiece(vocabulary: _Vocabulary, ids: Mapping[str, int]) -> tokenizers.Tokenizer:
    """SentencePiece's BPE, where tokens with higher scores are merged first; unknown characters become bytes."""
    if not vocabulary.scores:
        raise WeightsError("tokenizer.ggml.model=llama needs tokenizer.ggml.scores")
    unknown = [token for kind, token in zip(vocabulary.token_type, ids, strict=False) if kind == UNKNOWN]
    merges = [(left, right) for _, left, right in sorted(_merges(vocabulary, ids), key=lambda merge: merge[0])]
    library = tokenizers.Tokenizer(
        models.BPE(
            dict(ids), merges, unk_token=unknown[0] if unknown else None, fuse_unk=True, byte_fallback="<0x00>" in ids
        )
    )
    replaced = decoders.Replace(SPACE, " ")
    if vocabulary.add_space_prefix:
        library.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
        library.decoder = decoders.Sequence(
            [replaced, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        library.normalizer = normalizers.Replace(" ", SPACE)
        library.decoder = decoders.Sequence([replaced, decoders.ByteFallback(), decoders.Fuse()])
    return library


def _merges(vocabulary: _Vocabulary, ids: Mapping[str, int]) -> Iterator[tuple[float, str, str]]:
    """Each pair of tokens that is one together, with its rank."""
    for token, score in zip(vocabulary.tokens, vocabulary.scores, strict=True):
        if len(token) <= _LONGEST_TOKEN:
            for end in range(1, len(token)):
                left, right = token[:end], token[end:]
                if left in ids and right in ids:
                    yield -score, left, right
