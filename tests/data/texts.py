"""Texts for the tests of prepared folders, and what is in such a folder."""

from pathlib import Path

from normscope.data.corpus import Corpus

POEM = "".join(f"Verse {i}: the cät sat on mat {i * i % 97}, and thought of {i % 13} fish 🐟.\n" for i in range(300))


def write(folder: Path, **texts: str) -> Path:
    """A folder with these texts, a file each."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_bytes(text.encode())
    return folder


def text_of(corpus: Corpus, part: str) -> str:
    """The text of a part, with | where a document ends."""
    file = corpus.train if part == "train" else corpus.validation
    tokens = file.window(0, len(file))
    pieces, start = [], 0
    for place in [*(tokens == corpus.tokenizer.eos_token_id).nonzero()[0].tolist(), len(tokens)]:
        pieces.append(corpus.tokenizer.decode(tokens[start:place]))
        start = place + 1
    return "|".join(pieces)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
