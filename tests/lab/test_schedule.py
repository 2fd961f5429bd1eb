"""Studies run side by side, go on where they were, and do not fall with each other."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from normscope.errors import ConfigError
from normscope.lab.schedule import Schedule, Study, Watch
from normscope.lab.store import Store
from normscope.lab.trial import Done, Trial
from normscope.lab.workers import Workers
from tests.lab.hands import Here, Silent

MEASURE = "normscope.lab.claims.variance_by_depth:measure"


def schedule_in(folder: Path, workers: Workers, watch: Watch | None = None) -> Schedule[list[float]]:
    return Schedule(Store(folder), workers, watch or Silent())


def trial(seed: int, alone: bool = False, **settings: Any) -> Trial:
    return Trial(MEASURE, {"gain": 1.0, "layers": 2, "samples": 8, **settings}, seed, alone)


def one_after_the_other(*batches: Sequence[Trial]) -> Study[list[float]]:
    """Asks for each batch after the one before; gives all worst figures."""
    found = []
    for batch in batches:
        found += [float(done.figures["worst"]) for done in (yield batch)]
    return found


def test_every_study_is_given_what_it_asked_for_in_its_order(tmp_path: Path) -> None:
    schedule = schedule_in(tmp_path, Here())
    seeds = [5, 3, 9, 1]
    found = schedule.run({"all": one_after_the_other([trial(s) for s in seeds]), "none": one_after_the_other([])})
    expected = [Here().start(trial(seed)).result().figures["worst"] for seed in seeds]
    assert found == {"all": expected, "none": []}


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
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


def test_a_study_that_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
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


class Slow:
    """Workers whose trials end when asked for, so that what runs at once can be seen."""

    count = 3

    def __init__(self) -> None:
        self.running: list[tuple[Trial, Future[Done]]] = []
        self.together: list[set[int]] = []
        self.alone: list[int] = []

    def start(self, trial: Trial) -> "Future[Done]":
        future: Future[Done] = Future()
        self.running = [(t, f) for t, f in self.running if not f.done()] + [(trial, future)]
        self.together.append({t.seed for t, _ in self.running})
        if trial.alone:
            self.alone.append(trial.seed)
        # The first that was started ends as soon as all hands are full, or nothing else could start.
        if len(self.running) == self.count or trial.alone or trial.seed == 3:
            for _, waiting in self.running:
                waiting.set_result(Done({"worst": 0.0}, 1.0))
        return future

    def close(self) -> None:
        pass


def test_what_measures_time_runs_when_nothing_else_does(tmp_path: Path) -> None:
    workers = Slow()
    alone = one_after_the_other([trial(seed, alone=True) for seed in (10, 11)])
    side_by_side = one_after_the_other([trial(seed) for seed in range(4)])
    schedule_in(tmp_path, workers).run({"alone": alone, "many": side_by_side})
    assert workers.alone == [10, 11]
    assert max(map(len, workers.together)) == 3
    assert all(len(seeds) == 1 for seeds in workers.together if seeds & {10, 11})
