"""Texts for tests of prepared folders, and the contents of such folders."""

from pathlib import Path

from normscope.data.corpus import Corpus

POEM = "".join(f"Verse {i}: the cät sat on mat {i * i % 97}, and thought of {i % 13} fish 🐟.\n" for i in range(300))


def write(folder: Path, **texts: str) -> Path:
    """A folder with one file per text."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_bytes(text.encode())
    return folder


def text_of(corpus: Corpus, part: str) -> str:
    """Text of a part, with | at document ends."""
    file = corpus.train if part == "train" else corpus.validation
    tokens = file.window(0, len(file))
    pieces, start = [], 0
    for end in [*(tokens == corpus.tokenizer.eos_token_id).nonzero()[0].tolist(), len(tokens)]:
        pieces.append(corpus.tokenizer.decode(tokens[start:end]))
        start = end + 1
    return "|".join(pieces)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
