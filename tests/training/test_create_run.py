"""From text to a new run: settings, sources, and cleanup after an error."""

from pathlib import Path
from typing import Any

import pytest

from normscope.data.prepare import prepare
from normscope.errors import ConfigError, CorpusError, FileError, NormscopeError, TokenError
from normscope.runs.run import Run
from normscope.storage.lock import locked
from normscope.training.create_run import create_run
from tests.training.small_run import RECIPE, TEXT


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_settings_override_the_recipes(tmp_path: Path, text: Path) -> None:
    run = create_run(tmp_path / "run", [text], RECIPE, model={"width": 32, "activation": "gelu"}, train={"steps": 3})
    assert (run.config.model.width, run.config.model.activation, run.config.model.depth) == (32, "gelu", 2)
    assert (run.config.train.steps, run.config.train.batch) == (3, 4)
    assert run.config.model.vocab_size == run.corpus().tokenizer.vocab_size
    assert run.config.corpus == "data"
    assert Run.open(run.folder).config == run.config


def test_the_prompt_is_kept(tmp_path: Path, text: Path) -> None:
    assert create_run(tmp_path / "run", [text], RECIPE, prompt="7 bottles").config.prompt == "7 bottles"


def test_a_prepared_folder_is_used_in_place(tmp_path: Path, text: Path) -> None:
    corpus = prepare(text, tmp_path / "tokens", tokenizer="bytes")
    run = create_run(tmp_path / "run", [corpus.folder], RECIPE)
    assert run.config.corpus == str(tmp_path / "tokens")
    assert run.config.model.vocab_size == corpus.tokenizer.vocab_size
    assert names(run.folder) == ["config.json", "manifest.json", "tokenizer.json"]


def test_a_prepared_folder_inside_the_run_moves_with_it(tmp_path: Path, text: Path) -> None:
    corpus = prepare(text, tmp_path / "run" / "data")
    assert create_run(tmp_path / "run", [corpus.folder], RECIPE).config.corpus == "data"


def test_an_existing_run_is_an_error(tmp_path: Path, text: Path) -> None:
    run = create_run(tmp_path / "run", [text], RECIPE)
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    with pytest.raises(FileError, match=r"already contains a run"):
        create_run(tmp_path / "run", [text], RECIPE, train={"steps": 5})
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize("strange", ["notes.txt", "data/mine.txt"])
def test_a_folder_with_other_files_is_an_error(tmp_path: Path, text: Path, strange: str) -> None:
    path = tmp_path / "run" / strange
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(FileError, match=rf"run is not empty: it has {strange}\nfix: choose a new folder"):
        create_run(tmp_path / "run", [text], RECIPE)
    assert path.read_text() == "mine"


def test_two_starts_at_once_exclude_each_other(tmp_path: Path, text: Path) -> None:
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"), pytest.raises(FileError, match="another process is using"):
        create_run(tmp_path / "run", [text], RECIPE)
    create_run(tmp_path / "run", [text], RECIPE)


REFUSED: list[tuple[type[NormscopeError], str, dict[str, Any]]] = [
    (ConfigError, "steps=0", {"train": {"steps": 0}}),
    (ConfigError, "ns_steps=9", {"train": {"ns_steps": 9}}),
    (ConfigError, r"seed=\d+ must be an integer from 0 to 2\^64 - 1", {"train": {"seed": 2**64}}),
    (ConfigError, "weight_decay=inf", {"train": {"weight_decay": float("inf")}}),
    (ConfigError, r"device='gpu' cannot be used here: .*\nfix: ", {"train": {"device": "gpu"}}),
    (ConfigError, "device='meta' cannot be used here", {"train": {"device": "meta"}}),
    (ConfigError, "device=3", {"train": {"device": 3}}),
    (ConfigError, "no setting 'colour'", {"model": {"colour": "red"}}),
    (ConfigError, "width=15", {"model": {"width": 15}}),
    (CorpusError, "context=100000 needs", {"model": {"context": 100_000}}),
    (TokenError, "'é'", {"prompt": "é"}),
    (ConfigError, "val_fraction=3", {"val_fraction": 3.0}),
]


@pytest.mark.parametrize(("error", "words", "settings"), REFUSED, ids=lambda value: str(value)[:30])
def test_a_failed_start_leaves_nothing_and_can_be_repeated(
    tmp_path: Path, text: Path, error: type[NormscopeError], words: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(error, match=words):
        create_run(tmp_path / "run", [text], RECIPE, **settings)
    assert names(tmp_path) == ["text.txt"]
    create_run(tmp_path / "run", [text], RECIPE)


def test_compile_needs_a_compiler(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler, but none was found\nfix: "):
        create_run(tmp_path / "run", [text], RECIPE, train={"compile": True, "device": "cpu"})
    assert names(tmp_path) == ["text.txt"]


def test_a_missing_text_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no file or folder"):
        create_run(tmp_path / "run", [tmp_path / "nothing.txt"], RECIPE)
    assert names(tmp_path) == []


def test_an_interruption_leaves_nothing(tmp_path: Path, text: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_run(tmp_path / "run", [text], RECIPE, progress=interrupt)
    assert names(tmp_path) == ["text.txt"]


def test_files_of_a_killed_preparation_are_overwritten(tmp_path: Path, text: Path) -> None:
    data = tmp_path / "run" / "data"
    data.mkdir(parents=True)
    (data / "train.bin").write_bytes(b"half of it")
    (data / ".validation.bin.0123.part").write_bytes(b"")
    run = create_run(tmp_path / "run", [text], RECIPE)
    assert len(run.corpus(verify=True).train) > 1000


def test_partial_files_of_a_killed_start_are_ignored(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.config.json.0123456789abcdef.part").write_text("{")
    create_run(tmp_path / "run", [text], RECIPE, val_fraction=0.02)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/.notes.part").write_text("mine")
    with pytest.raises(FileError, match=r"is not empty: it has \.notes\.part"):
        create_run(tmp_path / "other", [text], RECIPE, val_fraction=0.02)
