"""Trials and their cache: keys, determinism, damaged files."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from normscope.errors import ConfigError, NonFiniteError
from normscope.lab.claims.initialization import variance_by_depth
from normscope.lab.running import code_version as source
from normscope.lab.running import trial as trial_module
from normscope.lab.running.code_version import CodeSnapshot, versions
from normscope.lab.running.trial import LabTrial, Store, run_trial, to_plain_metrics

MEASURE = "normscope.lab.claims.initialization.variance_by_depth:measure"
SETTINGS = {"gain": 1.0, "layers": 2, "samples": 8}


def test_stored_trial_is_loaded_with_the_same_metrics(tmp_path: Path) -> None:
    store, trial = Store(tmp_path), LabTrial(MEASURE, SETTINGS, seed=3)
    assert store.load(trial) is None
    done = run_trial(trial)
    store.save(trial, done)
    found = store.load(trial)
    assert found is not None
    assert found.metrics == json.loads(json.dumps(done.metrics))
    assert Store(tmp_path).load(LabTrial(MEASURE, dict(reversed(SETTINGS.items())), seed=3)) == found


def test_key_depends_on_seed_settings_measure_code_and_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        LabTrial(MEASURE, SETTINGS, 0).key,
        LabTrial(MEASURE, SETTINGS, 1).key,
        LabTrial(MEASURE, {**SETTINGS, "gain": 2.0}, 0).key,
        LabTrial("normscope.lab.trials.text:train_text", SETTINGS, 0).key,
    }
    monkeypatch.setattr(CodeSnapshot, "digest", lambda self, module: "other code")
    keys.add(LabTrial(MEASURE, SETTINGS, 0).key)
    monkeypatch.undo()
    for library in versions():
        monkeypatch.setattr(source, "versions", lambda library=library: {**versions(), library: "9.9"})
        keys.add(LabTrial(MEASURE, SETTINGS, 0).key)
    assert len(keys) == 5 + len(versions())


def test_key_depends_on_the_processor_only_for_times(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {alone: LabTrial(MEASURE, SETTINGS, 0, alone).key for alone in (False, True)}
    monkeypatch.setattr(trial_module, "processor", lambda: "another")
    assert LabTrial(MEASURE, SETTINGS, 0, alone=False).key == before[False]
    assert LabTrial(MEASURE, SETTINGS, 0, alone=True).key != before[True]


def test_metrics_of_other_code_are_not_stored(tmp_path: Path) -> None:
    store, trial = Store(tmp_path), LabTrial(MEASURE, SETTINGS, seed=0)
    done = run_trial(trial)
    with pytest.raises(ConfigError, match=r"other code(.|\n)*fix: run the same command again"):
        store.save(trial, dataclasses.replace(done, code_digest="of an edited file"))
    assert store.load(trial) is None
    store.save(trial, done)
    assert store.load(trial) is not None


@pytest.mark.parametrize("damage", ["", "{", '{"metrics": {}}', "altered"])
def test_damaged_file_is_a_cache_miss(tmp_path: Path, damage: str) -> None:
    store, trial = Store(tmp_path), LabTrial(MEASURE, SETTINGS, seed=0)
    store.save(trial, run_trial(trial))
    (path,) = (tmp_path / "trials").glob("*.json")
    if damage == "altered":
        content = json.loads(path.read_text())
        content["metrics"]["worst"] = 0.0
        damage = json.dumps(content)
    path.write_text(damage)
    assert store.load(trial) is None


def test_trial_is_deterministic() -> None:
    trial = LabTrial(MEASURE, SETTINGS, seed=1)
    assert run_trial(trial).metrics == run_trial(trial).metrics


def test_trial_runs_on_one_thread_and_restores_the_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def measure(settings: object, seed: int) -> dict[str, float]:
        seen.append(torch.get_num_threads())
        return {}

    monkeypatch.setattr(variance_by_depth, "measure", measure)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        run_trial(LabTrial(MEASURE, SETTINGS, seed=1))
        assert (seen, torch.get_num_threads()) == ([1], 3)
    finally:
        torch.set_num_threads(before)


def test_metrics_that_json_cannot_represent_are_refused() -> None:
    with pytest.raises(NonFiniteError, match="loss of demo is nan"):
        to_plain_metrics({"loss": float("nan")}, "demo")
    with pytest.raises(NonFiniteError, match="curve of demo is inf"):
        to_plain_metrics({"curve": [[1, float("inf")]]}, "demo")
    with pytest.raises(NonFiniteError, match="is a set"):
        to_plain_metrics({"loss": {1.0}}, "demo")


def test_foreign_measure_functions_are_refused() -> None:
    with pytest.raises(ConfigError, match="a measure of normscope"):
        _ = LabTrial("os:system", {}, 0).key
