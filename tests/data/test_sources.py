"""Files, folders and patterns resolve to files in a fixed order."""

import os
from pathlib import Path
from typing import Any

import pytest

from normscope.data.sources import SourceFile, find_sources
from normscope.errors import ArgumentTypeError, ConfigError, FileError


@pytest.fixture
def books(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.TXT", "sub/c.md", "sub/deep/d.py", "e.jsonl", "f.parquet", "g.png", "h.log", "README"):
        path = tmp_path / "books" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    for name in (".hidden.txt", ".git/inside.txt", "sub/.cache/x.txt"):
        path = tmp_path / "books" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("hidden")
    return tmp_path / "books"


def found(*names: Any, **options: Any) -> list[str]:
    return [source.path.name for source in find_sources(list(names), **options)[0]]


def test_a_folder_gives_known_files_of_all_levels_sorted(books: Path) -> None:
    sources, notices = find_sources(books)
    assert [str(source.path.relative_to(books)) for source in sources] == [
        "a.TXT",
        "b.txt",
        "e.jsonl",
        "f.parquet",
        "sub/c.md",
        "sub/deep/d.py",
    ]
    assert [source.format for source in sources] == ["text", "text", "jsonl", "parquet", "text", "text"]
    assert notices == [
        f"{books}: skipped 3 files with other suffixes than .txt, .md, .py, .jsonl, .parquet: README, g.png, h.log"
    ]


def test_an_explicit_file_may_have_any_suffix(books: Path) -> None:
    sources, notices = find_sources(str(books / "h.log"))
    assert sources == [SourceFile(str(books / "h.log"), books / "h.log", "text")]
    assert notices == []
    assert found(books / ".hidden.txt", books / "README") == [".hidden.txt", "README"]


def test_argument_order_is_kept(books: Path) -> None:
    assert found(books / "sub", books / "b.txt") == ["c.md", "d.py", "b.txt"]


def test_patterns(books: Path) -> None:
    assert found(books / "*.txt") == ["b.txt"]
    assert found(f"{books}/**/*.py") == ["d.py"]
    assert found(f"{books}/*.log") == ["h.log"]
    sources, notices = find_sources(f"{books}/[f-h]*")
    assert [source.path.name for source in sources] == ["f.parquet"]
    assert "skipped 2 files" in notices[0]
    assert "g.png, h.log" in notices[0]
    assert "skipped 1 file with other suffixes than" in find_sources(f"{books}/[fg]*")[1][0]


def test_file_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "[a].txt").write_text("x")
    assert found(tmp_path / "[a].txt") == ["[a].txt"]


def test_duplicate_files_are_read_once(books: Path) -> None:
    os.symlink(books / "b.txt", books / "z.txt")
    sources, notices = find_sources([books / "b.txt", books / "sub" / ".." / "b.txt", books / "z.txt"])
    assert [source.path.name for source in sources] == ["b.txt"]
    assert len(notices) == 2
    assert notices[1] == f"{books / 'z.txt'} is the same file as {books / 'b.txt'} and is read only once"


def test_standard_input_is_named(tmp_path: Path) -> None:
    sources, _ = find_sources(["-"], piped=tmp_path / "kept")
    assert sources == [SourceFile("-", tmp_path / "kept", "text")]


def test_column_is_kept(books: Path) -> None:
    assert find_sources(books / "e.jsonl", column="body")[0][0].column == "body"


def test_runs_and_prepared_corpora_are_skipped(books: Path) -> None:
    """Else a second `train .` would read what the first one wrote."""
    for name in ("runs/one/config.json", "runs/one/metrics.jsonl", "runs/one/notes/n.txt", "runs/two.txt"):
        (books / name).parent.mkdir(parents=True, exist_ok=True)
        (books / name).write_text("{}")
    for name in ("tokens/corpus.json", "tokens/train.bin", "tokens/n.txt"):
        (books / name).parent.mkdir(parents=True, exist_ok=True)
        (books / name).write_text("{}")
    sources, notices = find_sources(books / "runs")
    assert [source.path for source in sources] == [books / "runs" / "two.txt"]
    assert notices == [f"{books / 'runs'}: skipped 1 run or prepared corpus: one"]
    sources, notices = find_sources(books)
    assert not {"metrics.jsonl", "n.txt"} & {source.path.name for source in sources}
    assert "skipped 2 runs or prepared corpora: runs/one, tokens" in notices[1]
    with pytest.raises(FileError, match=r"runs/one is a run or a prepared corpus, not text\nfix: "):
        find_sources(books / "runs" / "one")


def test_folder_that_only_looks_like_a_run_is_read(books: Path) -> None:
    (books / "sub" / "config.json").write_text("{}")
    (books / "sub" / "corpus.json").write_text("{}")
    assert found(books / "sub") == ["c.md", "d.py"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name on this system")
def test_a_named_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match=r"pipe is a pipe or a device.*\nfix: .*\| normscope train -"):
        find_sources(tmp_path / "pipe")


def test_invalid_arguments(books: Path) -> None:
    with pytest.raises(FileError, match=r"there is no file or folder .*bb\.txt\nfix: did you mean '.*books/b\.txt'\?"):
        find_sources(books / "bb.txt")
    with pytest.raises(FileError, match=r"nofile\.txt\nfix: check the path"):  # not similar: only the extension matches
        find_sources(books / "nofile.txt")
    with pytest.raises(FileError, match=r"there is no file or folder .*xyz/a\nfix: check the path"):
        find_sources(books / "xyz" / "a")
    with pytest.raises(FileError, match=r"no text file matches .*\*\.rst\nfix: check the pattern"):
        find_sources(books / "*.rst")
    with pytest.raises(FileError, match="no sources given\nfix: name a file"):
        find_sources([])
    (books / "empty").mkdir()
    with pytest.raises(FileError, match=r"the folder .*empty has no text files .*\.parquet\)\nfix: .*empty/\*\.log"):
        find_sources(books / "empty")
    with pytest.raises(ArgumentTypeError, match=r"a text must be a path \(str or Path\), but got 3"):
        find_sources([3])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="column='' must be a non-empty string\nfix: "):
        find_sources(books, column="")
