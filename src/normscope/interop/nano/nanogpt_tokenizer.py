"""The tokenizer of a nanoGPT model: the characters of a meta.pkl, or GPT-2's, whose files lie beside the checkpoint."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.data.tokenizers import AlphabetTokenizer, ByteTokenizer, CharacterTokenizer, Tokenizer, load_tokenizer
from normscope.data.tokenizers.load import ModelTokens
from normscope.errors import FileError, WeightsError
from normscope.interop.files.pickle_file import read_pickle
from normscope.storage.files import open_regular, read_limited
from normscope.storage.json_files import SMALL_FILE_BYTES, read_json

_MERGES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
"""Names of the vocabulary and the merges of GPT-2's tokenizer: Hugging Face's, and those of the original."""
_BYTES = [chr(byte) if byte < 128 else "\N{REPLACEMENT CHARACTER}" for byte in range(256)]
_FIX = "copy the file again, or remove it"


def find_tokenizer(folder: Path, dataset: Any, vocab_size: int) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """Read the tokenizer that is beside a checkpoint or in nanoGPT's data folder; None with a notice if none is."""
    places = [folder]
    if isinstance(dataset, str) and re.fullmatch(r"[\w-][\w.-]*", dataset):  # never a path out of the data folder
        places.append(folder.absolute().parent / "data" / dataset)
    tokenizer = next((found for place in places if (found := _read(place, vocab_size)) is not None), None)
    if tokenizer is None:
        wanted = "the meta.pkl of its data folder, or GPT-2's tokenizer.json (or encoder.json and vocab.bpe)"
        return None, (f"no tokenizer found: copy {wanted} to {folder}",)
    if tokenizer.vocab_size > vocab_size:
        raise WeightsError(
            f"the tokenizer in {folder} has {tokenizer.vocab_size:,} tokens, but the model only {vocab_size:,}\n"
            f"fix: use the tokenizer that the model was trained with"
        )
    return tokenizer, tokenizer.notices


def _read(folder: Path, vocab_size: int) -> Tokenizer | None:
    if (folder / "meta.pkl").is_file():
        return _characters(folder / "meta.pkl")
    if (folder / "tokenizer.json").is_file():
        return load_tokenizer(folder / "tokenizer.json", ModelTokens(vocab_size, None))
    for vocabulary, merges in _MERGES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            return _byte_pairs(folder / vocabulary, folder / merges)
    return None


def _characters(path: Path) -> Tokenizer:
    """The tokenizer of a meta.pkl. Those that `normscope export` writes may end with end-of-text, an empty string."""
    meta = read_pickle(path)
    numbered = meta.get("itos") if isinstance(meta, Mapping) else None
    if not isinstance(numbered, Mapping) or {*numbered} != {*range(len(numbered))}:
        raise FileError(f"{path} has no characters: 'itos' must map 0, 1, 2, ... to them\nfix: {_FIX}")
    names = [numbered[i] for i in range(len(numbered))]
    has_eos = names[-1:] == [""]
    characters = names[:-1] if has_eos else names
    if has_eos and characters == _BYTES:
        return ByteTokenizer()
    if not all(isinstance(one, str) and len(one) == 1 for one in characters) or characters != sorted({*characters}):
        raise FileError(f"{path} does not list characters in Unicode order, as nanoGPT's prepare.py does\nfix: {_FIX}")
    return CharacterTokenizer("".join(characters)) if has_eos else AlphabetTokenizer("".join(characters))


def _byte_pairs(vocabulary: Path, merges: Path) -> Tokenizer:
    from normscope.interop.nano.tiktoken_bpe import tokenizer_from_merges  # imports tokenizers

    ids = read_json(vocabulary, dict[str, int], fix=_FIX)
    with open_regular(merges) as file:
        lines = read_limited(file, merges, SMALL_FILE_BYTES).decode("utf-8", "replace").splitlines()
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise FileError(f"{merges} has the line {' '.join(wrong)!r:.60}, which is no pair of tokens\nfix: {_FIX}")
    return tokenizer_from_merges(ids, [(a, b) for a, b in pairs])
