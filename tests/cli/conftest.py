"""One trained run for the commands that only read it."""

import os
from pathlib import Path

import pytest

from normscope.cli import main
from tests.cli.running import SMALL, write_text


@pytest.fixture(scope="package")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    text = write_text(folder)
    with open(os.devnull, "w") as nowhere, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", nowhere)
        assert main(["train", str(text), "--out", str(folder / "run"), *SMALL, "4"]) == 0
    return folder / "run"


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own to type commands in, with a text."""
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    return tmp_path
