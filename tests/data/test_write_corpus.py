"""A new corpus replaces an old one only when it is complete."""

import os
import stat
from itertools import count
from pathlib import Path

import pytest

from normscope.data.corpus import Corpus, open_corpus
from normscope.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from normscope.data.write_corpus import write_corpus
from normscope.errors import FileError
from tests.data.texts import POEM, contents

FILES = ["corpus.json", "tokenizer.json", "train.bin", "validation.bin"]


def written(folder: Path, tokenizer: Tokenizer) -> Corpus:
    texts = iter([("train", POEM), ("train", None), ("validation", POEM[:100]), ("validation", None)])
    return write_corpus(folder, texts, tokenizer, settings={})  # type: ignore[arg-type]


def test_a_full_disk_keeps_the_old_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the room ends: each file in its turn is the first that does not come to the disk."""
    written(tmp_path, CharacterTokenizer.of([POEM]))
    before = contents(tmp_path)
    for failing in count():
        synced = count()

        def sync(_: int, synced: "count[int]" = synced, failing: int = failing) -> None:
            if next(synced) == failing:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", sync)
        try:
            written(tmp_path, ByteTokenizer())
        except FileError:
            assert contents(tmp_path) == before
        else:
            break
    assert failing == len(FILES)
    assert open_corpus(tmp_path, verify=True).tokenizer.kind == "bytes"


def test_an_incomplete_corpus_has_no_record(tmp_path: Path) -> None:
    written(tmp_path, CharacterTokenizer.of([POEM]))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(FileError, match=r"cannot write .*corpus\.json: "):
        written(tmp_path, ByteTokenizer())
    with pytest.raises(FileError, match="is incomplete: its preparation was interrupted"):
        open_corpus(tmp_path)


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    written(tmp_path / "out", ByteTokenizer())
    (tmp_path / "usual").write_text("")
    modes = {stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) for name in FILES}
    assert modes == {stat.S_IMODE((tmp_path / "usual").stat().st_mode)}
