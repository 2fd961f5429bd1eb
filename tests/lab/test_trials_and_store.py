"""Trials: the same key for the same figures, kept whole or not at all."""

import json
from pathlib import Path

import pytest

from normscope.errors import ConfigError, NotFiniteError
from normscope.lab import trial as trial_module
from normscope.lab.figures import checked
from normscope.lab.store import Store
from normscope.lab.trial import Trial, perform

MEASURE = "normscope.lab.claims.variance_by_depth:measure"
SETTINGS = {"gain": 1.0, "layers": 2, "samples": 8}


def test_a_trial_that_was_kept_is_found_with_the_same_figures(tmp_path: Path) -> None:
    store, trial = Store(tmp_path), Trial(MEASURE, SETTINGS, seed=3)
    assert store.find(trial) is None
    done = perform(trial)
    store.keep(trial, done)
    found = store.find(trial)
    assert found is not None
    assert found.figures == json.loads(json.dumps(done.figures))
    assert Store(tmp_path).find(Trial(MEASURE, dict(reversed(SETTINGS.items())), seed=3)) == found


def test_another_seed_setting_measure_code_or_torch_is_another_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        Trial(MEASURE, SETTINGS, 0).key,
        Trial(MEASURE, SETTINGS, 1).key,
        Trial(MEASURE, {**SETTINGS, "gain": 2.0}, 0).key,
        Trial("normscope.lab.trials.text:train_text", SETTINGS, 0).key,
    }
    monkeypatch.setattr(trial_module, "code_of", lambda module: "other code")
    keys.add(Trial(MEASURE, SETTINGS, 0).key)
    monkeypatch.undo()
    monkeypatch.setattr(trial_module, "torch_version", lambda: "9.9")
    keys.add(Trial(MEASURE, SETTINGS, 0).key)
    assert len(keys) == 6


def test_whether_it_runs_alone_changes_no_figure_and_no_key() -> None:
    assert Trial(MEASURE, SETTINGS, 0, alone=True).key == Trial(MEASURE, SETTINGS, 0).key


@pytest.mark.parametrize("damage", ["", "{", '{"figures": {}}', "altered"])
def test_a_damaged_file_counts_as_not_there(tmp_path: Path, damage: str) -> None:
    store, trial = Store(tmp_path), Trial(MEASURE, SETTINGS, seed=0)
    store.keep(trial, perform(trial))
    (path,) = (tmp_path / "trials").glob("*.json")
    if damage == "altered":
        content = json.loads(path.read_text())
        content["figures"]["worst"] = 0.0
        damage = json.dumps(content)
    path.write_text(damage)
    assert store.find(trial) is None


def test_the_same_trial_gives_the_same_figures_twice() -> None:
    trial = Trial(MEASURE, SETTINGS, seed=1)
    assert perform(trial).figures == perform(trial).figures


def test_threads_are_as_before_after_a_trial() -> None:
    import torch

    before = torch.get_num_threads()
    perform(Trial(MEASURE, SETTINGS, seed=1))
    assert torch.get_num_threads() == before


def test_figures_that_json_cannot_hold_are_refused_by_name() -> None:
    with pytest.raises(NotFiniteError, match="loss of demo is nan"):
        checked({"loss": float("nan")}, "demo")
    with pytest.raises(NotFiniteError, match="curve of demo is inf"):
        checked({"curve": [[1, float("inf")]]}, "demo")
    with pytest.raises(NotFiniteError, match="is a set"):
        checked({"loss": {1.0}}, "demo")


def test_only_measures_of_normscope_are_run() -> None:
    with pytest.raises(ConfigError, match="a measure of normscope"):
        _ = Trial("os:system", {}, 0).key
