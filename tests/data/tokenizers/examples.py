"""Small tokenizers of every kind, built like the published ones."""

from pathlib import Path

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from normscope.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer, train_bpe

TEXT = "Die Katze läßt das Mausen nicht. 猫は寝る 🐈\u200d⬛ e\u0301 the cat sat on the mat, and the hat\n\n"


def like_gpt2() -> Library:
    """Byte-level BPE with <|endoftext|>."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator([TEXT] * 5, trainer)
    return library


def like_llama() -> Library:
    """SentencePiece style: a marker for spaces, a prefix space, and byte fallback."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdehlmnorstuw"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("a", "t")]
    words += [a + b for a, b in merges]
    vocabulary = {word: token for token, word in enumerate(words)}
    library = Library(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    return library


def like_bert() -> Library:
    """Lowercase words, with [UNK] for unknown ones."""
    words = ["[PAD]", "[UNK]", "the", "cat", "sat", "##s", "hat", ",", "."]
    library = Library(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return library


def every_tokenizer() -> dict[str, Tokenizer]:
    return {
        "characters": CharacterTokenizer.of([TEXT]),
        "bytes": ByteTokenizer(),
        "bpe": train_bpe([TEXT] * 5, vocab_size=300),
        "gpt2": HuggingFaceTokenizer(like_gpt2()),
        "llama": HuggingFaceTokenizer(like_llama()),
        "bert": HuggingFaceTokenizer(like_bert()),
    }


def saved(library: Library, folder: Path) -> Path:
    path = folder / "their-tokenizer.json"
    library.save(str(path))
    return path
