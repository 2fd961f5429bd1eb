"""The Python API: train text, open the run, sample it, resume it and write its report."""

from pathlib import Path
from typing import Any

import pytest
import torch

import normscope
from normscope.errors import ConfigError
from normscope.training.train import TrainingRun
from tests.training.small_run import TEXT

TINY: dict[str, Any] = {
    "depth": 1,
    "width": 16,
    "heads": 2,
    "context": 16,
    "batch": 2,
    "device": "cpu",
    "tokenizer": "bytes",
}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my.txt"
    path.write_text(TEXT)
    return path


def test_train_sample_report_and_resume(text: Path) -> None:
    run = normscope.train(text, steps=4, observers=[], **TINY)
    assert (run.folder, run.is_done(), run.config.train.steps) == (Path("runs/my"), True, 4)
    assert run.sample("the", max_new_tokens=5).startswith("the")
    with pytest.raises(normscope.NormscopeError, match=r"fix: normscope\.sample"):
        run.sample("the", max_new_tokens=5, samples=2)
    assert run.report().is_file()
    again = normscope.open_run(run.folder)
    assert isinstance(again, TrainingRun)
    assert again.resume(observers=[], from_step=0, until=2) == "paused"
    assert again.checkpoints.last() == 2
    assert again.resume(observers=[]) == "done"


def test_sampling_leaves_the_rng_alone(text: Path) -> None:
    run = normscope.train(text, steps=1, observers=[], **TINY)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    normscope.sample(run, "the", max_new_tokens=3)
    normscope.chat(run)
    assert torch.equal(torch.rand(3), expected)


def test_runs_of_one_text_get_folders_of_their_own(text: Path) -> None:
    folders = [normscope.train(str(text), steps=1, observers=[], **TINY).folder for _ in range(2)]
    assert folders == [Path("runs/my"), Path("runs/my-2")]


def test_a_display_is_the_default(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    normscope.train([text], steps=1, out="out", prompt="a", **TINY)
    assert "done: step 1 of 1" in capsys.readouterr().out


def test_an_unknown_setting_is_named(text: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'stpes'\nfix: did you mean 'steps'\?"):
        normscope.train("x.txt", stpes=3)
    with pytest.raises(
        ConfigError, match=r"unknown setting 'learning_rate'\nfix: use a setting of the training .*\blr\b"
    ):
        normscope.train(text, learning_rate=0.1)
    assert not Path("runs").exists()
