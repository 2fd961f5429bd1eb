"""The scheduler: parallel studies, resume, independent failures."""

from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from normscope.errors import ConfigError, FileError
from normscope.lab.running.code_version import code_digest
from normscope.lab.running.scheduler import Study, StudyObserver, TrialScheduler
from normscope.lab.running.trial import LabTrial, Store, TrialResult, run_trial
from normscope.lab.running.workers import MachineLostError, Workers
from normscope.storage.lock import locked
from tests.lab.workers import Here, Silent

MEASURE = "normscope.lab.claims.initialization.variance_by_depth:measure"


def schedule_in(folder: Path, workers: Workers, watch: StudyObserver | None = None) -> TrialScheduler[list[float]]:
    return TrialScheduler(Store(folder), workers, watch or Silent())


def trial(seed: int, alone: bool = False, **settings: Any) -> LabTrial:
    return LabTrial(MEASURE, {"gain": 1.0, "layers": 2, "samples": 8, **settings}, seed, alone)


def one_after_the_other(*batches: Sequence[LabTrial]) -> Study[list[float]]:
    """Request one batch of trials after the other; return the metric `worst` of all."""
    found = []
    for batch in batches:
        found += [float(done.metrics["worst"]) for done in (yield batch)]
    return found


def test_results_arrive_in_the_order_of_the_request(tmp_path: Path) -> None:
    schedule = schedule_in(tmp_path, Here())
    seeds = [5, 3, 9, 1]
    found = schedule.run({"all": one_after_the_other([trial(s) for s in seeds]), "none": one_after_the_other([])})
    expected = [Here().start(trial(seed)).result().metrics["worst"] for seed in seeds]
    assert found == {"all": expected, "none": []}


def test_interrupted_run_resumes(tmp_path: Path) -> None:
    def studies() -> dict[str, Study[list[float]]]:
        return {"a": one_after_the_other([trial(0), trial(1)], [trial(2)]), "b": one_after_the_other([trial(3)])}

    broken = Here(count=1, stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        schedule_in(tmp_path, broken).run(studies())
    rest, watch = Here(), Silent()
    found = schedule_in(tmp_path, rest, watch).run(studies())
    assert {t.seed for t in broken.started}.isdisjoint({t.seed for t in rest.started})
    assert len(broken.started) + len(rest.started) == 4
    assert found == schedule_in(tmp_path / "new", Here()).run(studies())
    assert sum(cached for _, cached in watch.trials) == 2


def test_failing_study_does_not_stop_the_others(tmp_path: Path) -> None:
    def refused() -> Study[list[float]]:
        yield [trial(7)]
        raise ConfigError("not equal")

    watch = Silent()
    schedule = schedule_in(tmp_path, Here(), watch)
    bad = one_after_the_other([trial(0, layers=0), trial(1)])  # a stack of no layers cannot be measured
    found = schedule.run({"bad": bad, "refused": refused(), "good": one_after_the_other([trial(2)])})
    assert list(found) == ["good"]
    assert set(schedule.errors) == {"bad", "refused"}
    assert watch.studies["good"] is None
    assert str(watch.studies["refused"]) == "not equal"


def test_error_names_the_trial(tmp_path: Path) -> None:
    schedule = schedule_in(tmp_path, Here())
    schedule.run({"bad": one_after_the_other([trial(4, samples=0)])})
    error = schedule.errors["bad"]
    said = "\n".join([str(error), *getattr(error, "__notes__", [])])
    assert f"seed 4 of {MEASURE}" in said
    assert '"samples": 0' in said


@pytest.mark.parametrize("error", [ConfigError("too wide\nfix: 64"), KeyError("depth"), OSError(28, "full")])
def test_error_keeps_its_type_and_message(tmp_path: Path, error: Exception) -> None:
    class Raises(Here):
        def start(self, trial: LabTrial) -> "Future[TrialResult]":
            future: Future[TrialResult] = Future()
            future.set_exception(error)
            return future

    words = str(error)
    schedule = schedule_in(tmp_path, Raises())
    schedule.run({"bad": one_after_the_other([trial(4)])})
    assert schedule.errors["bad"] is error
    assert str(error).startswith(words)
    assert "seed 4 of" in "\n".join([str(error), *getattr(error, "__notes__", [])])


def test_metrics_of_edited_code_fail_only_their_study(tmp_path: Path) -> None:
    class Edited(Here):
        def start(self, trial: LabTrial) -> "Future[TrialResult]":
            future: Future[TrialResult] = super().start(trial)
            if trial.seed == 1:
                future, done = Future(), future.result()
                future.set_result(TrialResult(done.metrics, done.seconds, "of an edited file"))
            return future

    schedule = schedule_in(tmp_path, Edited())
    found = schedule.run({"edited": one_after_the_other([trial(0), trial(1)]), "good": one_after_the_other([trial(2)])})
    assert list(found) == ["good"]
    assert "other code" in str(schedule.errors["edited"])
    assert Store(tmp_path).load(trial(1)) is None
    assert Store(tmp_path).load(trial(0)) is not None


def test_folder_is_locked_during_a_run(tmp_path: Path) -> None:
    schedule = schedule_in(tmp_path, Here())

    def inside() -> Study[list[float]]:
        with pytest.raises(FileError, match=r"another process is using .*\nfix: wait"):
            schedule_in(tmp_path, Here()).run({"too": one_after_the_other([trial(1)])})
        yield [trial(0)]
        return [1.0]

    assert schedule.run({"first": inside()}) == {"first": [1.0]}
    with locked(tmp_path), pytest.raises(FileError, match="another process"):
        schedule_in(tmp_path, Here()).run({"again": one_after_the_other([trial(0)])})
    assert list(schedule_in(tmp_path, Here()).run({"later": one_after_the_other([trial(0)])})) == ["later"]


class Slow:
    """Workers whose trials end on request, to observe what runs at the same time."""

    count = 3

    def __init__(self) -> None:
        self.running: list[tuple[LabTrial, Future[TrialResult]]] = []
        self.together: list[set[int]] = []
        self.alone: list[int] = []

    def start(self, trial: LabTrial) -> "Future[TrialResult]":
        future: Future[TrialResult] = Future()
        self.running = [(t, f) for t, f in self.running if not f.done()] + [(trial, future)]
        self.together.append({t.seed for t, _ in self.running})
        if trial.alone:
            self.alone.append(trial.seed)
        # The first that was started ends as soon as all workers are full, or nothing else could start.
        if len(self.running) == self.count or trial.alone or trial.seed == 3:
            for _, waiting in self.running:
                waiting.set_result(TrialResult({"worst": 0.0}, 1.0, code_digest(trial.module)))
        return future

    def close(self) -> None:
        pass


def test_timed_trials_run_alone(tmp_path: Path) -> None:
    workers = Slow()
    alone = one_after_the_other([trial(seed, alone=True) for seed in (10, 11)])
    side_by_side = one_after_the_other([trial(seed) for seed in range(4)])
    schedule_in(tmp_path, workers).run({"alone": alone, "many": side_by_side})
    assert workers.alone == [10, 11]
    assert max(map(len, workers.together)) == 3
    assert all(len(seeds) == 1 for seeds in workers.together if seeds & {10, 11})


class Mortal(Here):
    """Two at once, who are lost together when one of them is killed, as the processes of a pool are.

    Args:
        kills: how often the process that runs a seed is killed.
        error: what their futures raise then.
    """

    def __init__(self, kills: dict[int, int], error: type[BrokenExecutor] = BrokenProcessPool) -> None:
        super().__init__(count=2)
        self.kills, self.error = kills, error
        self.together: list[list[int]] = []
        self._running: list[tuple[LabTrial, Future[TrialResult]]] = []

    def start(self, trial: LabTrial) -> "Future[TrialResult]":
        is_alone = self.started.count(trial) > (self.error is MachineLostError)
        self.started.append(trial)
        self._running.append((trial, Future()))
        future = self._running[-1][1]
        if is_alone or len(self._running) == self.count:
            self._end()
        return future

    def _end(self) -> None:
        running, self._running = self._running, []
        self.together.append([trial.seed for trial, _ in running])
        killed = any(self.kills.get(trial.seed, 0) for trial, _ in running)
        for trial, future in running:
            self.kills[trial.seed] = max(0, self.kills.get(trial.seed, 0) - 1)
            if killed:
                future.set_exception(self.error("killed"))
            else:
                future.set_result(run_trial(trial))


@pytest.mark.parametrize("kills", [1, 2])
def test_trial_of_a_killed_worker_is_retried_alone(tmp_path: Path, kills: int) -> None:
    workers = Mortal({0: kills})
    schedule = schedule_in(tmp_path, workers)
    found = schedule.run(
        {
            "deadly": one_after_the_other([trial(0)]),
            "innocent": one_after_the_other([trial(seed) for seed in (1, 2, 3)]),
        }
    )
    assert workers.together == [[0, 1], [2, 3], [0], [1]]
    assert list(found) == (["deadly", "innocent"] if kills == 1 else ["innocent"])
    if kills == 2:
        assert f"seed 0 of {MEASURE}" in str(schedule.errors["deadly"])
        assert "memory" in str(schedule.errors["deadly"])


@pytest.mark.parametrize("kills", [1, 2, 3])
def test_trials_of_a_lost_machine_move_to_others_and_run_alone_only_after_a_second_loss(
    tmp_path: Path, kills: int
) -> None:
    workers, watch = Mortal({0: kills}, MachineLostError), Silent()
    schedule = schedule_in(tmp_path, workers, watch)
    found = schedule.run({"a": one_after_the_other([trial(0)]), "b": one_after_the_other([trial(1)])})
    assert workers.together == [[0, 1], [0, 1], [0], [1]][: 2 if kills == 1 else 4]
    assert watch.lost_machines == ["killed"]
    assert list(found) == (["b"] if kills == 3 else ["a", "b"])
    assert sorted(watch.trials) == [(name, False) for name in found]
