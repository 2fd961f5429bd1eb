"""Trials: the same key for the same figures, kept whole or not at all."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from normscope.errors import ConfigError, NonFiniteError
from normscope.lab import code_version as source
from normscope.lab import trial as trial_module
from normscope.lab.claims import variance_by_depth
from normscope.lab.code_version import Snapshot, versions
from normscope.lab.store import Store
from normscope.lab.trial import Trial, perform
from normscope.lab.trial_values import checked

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


def test_another_seed_setting_measure_code_or_library_is_another_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        Trial(MEASURE, SETTINGS, 0).key,
        Trial(MEASURE, SETTINGS, 1).key,
        Trial(MEASURE, {**SETTINGS, "gain": 2.0}, 0).key,
        Trial("normscope.lab.trials.text:train_text", SETTINGS, 0).key,
    }
    monkeypatch.setattr(Snapshot, "digest", lambda self, module: "other code")
    keys.add(Trial(MEASURE, SETTINGS, 0).key)
    monkeypatch.undo()
    for library in versions():
        monkeypatch.setattr(source, "versions", lambda library=library: {**versions(), library: "9.9"})
        keys.add(Trial(MEASURE, SETTINGS, 0).key)
    assert len(keys) == 5 + len(versions())


def test_times_of_another_processor_do_not_count_and_other_figures_do(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {alone: Trial(MEASURE, SETTINGS, 0, alone).key for alone in (False, True)}
    monkeypatch.setattr(trial_module, "processor", lambda: "another")
    assert Trial(MEASURE, SETTINGS, 0, alone=False).key == before[False]
    assert Trial(MEASURE, SETTINGS, 0, alone=True).key != before[True]


def test_figures_of_other_code_are_not_kept(tmp_path: Path) -> None:
    store, trial = Store(tmp_path), Trial(MEASURE, SETTINGS, seed=0)
    done = perform(trial)
    with pytest.raises(ConfigError, match=r"other code(.|\n)*fix: run the same command again"):
        store.keep(trial, dataclasses.replace(done, made_of="of an edited file"))
    assert store.find(trial) is None
    store.keep(trial, done)
    assert store.find(trial) is not None


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


def test_a_trial_runs_on_one_thread_and_leaves_the_threads_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def measure(settings: object, seed: int) -> dict[str, float]:
        seen.append(torch.get_num_threads())
        return {}

    monkeypatch.setattr(variance_by_depth, "measure", measure)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        perform(Trial(MEASURE, SETTINGS, seed=1))
        assert (seen, torch.get_num_threads()) == ([1], 3)
    finally:
        torch.set_num_threads(before)


def test_figures_that_json_cannot_hold_are_refused_by_name() -> None:
    with pytest.raises(NonFiniteError, match="loss of demo is nan"):
        checked({"loss": float("nan")}, "demo")
    with pytest.raises(NonFiniteError, match="curve of demo is inf"):
        checked({"curve": [[1, float("inf")]]}, "demo")
    with pytest.raises(NonFiniteError, match="is a set"):
        checked({"loss": {1.0}}, "demo")


def test_only_measures_of_normscope_are_run() -> None:
    with pytest.raises(ConfigError, match="a measure of normscope"):
        _ = Trial("os:system", {}, 0).key
