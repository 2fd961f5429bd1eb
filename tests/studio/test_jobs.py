"""Jobs: they are stopped once, closed when they have ended, and see no code of the working directory."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from normscope.studio import jobs
from normscope.studio.jobs import Job, Jobs, watch


@pytest.fixture
def started() -> Iterator[Jobs]:
    running = Jobs()
    yield running
    running.stop_all()


def ended(job: Job) -> Job:
    assert job.process.wait(60) is not None
    return job


def test_a_job_runs_no_code_of_the_working_directory(
    started: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "signal.py").write_text("print('HOSTILE')")
    monkeypatch.chdir(tmp_path)
    job = ended(started.start("train", "a", ["--version"]))
    assert job.status == "done"
    assert "HOSTILE" not in job.output()
    assert job.output().startswith("normscope")


def test_the_output_of_a_job_that_has_ended_is_closed_and_old_jobs_are_forgotten(
    started: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_JOBS", 2)
    first, second, third = (ended(started.start("train", name, ["--version"])) for name in "abc")
    assert [job.subject for job in started] == ["b", "c"]
    assert first.output_file.closed
    assert second.output_file.closed
    assert third.output() == second.output() != ""
    assert third.output_file.closed


class Sleeper:
    """A process that notes signals."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return 0 if self.signals else None

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


def test_a_job_is_asked_to_stop_once(tmp_path: Path) -> None:
    process = Sleeper()
    with (tmp_path / "output").open("w+b") as output:
        job = Job(1, "train", "a", process, output)  # type: ignore[arg-type]
        job.stop()
        process.poll = lambda: None  # type: ignore[method-assign]
        job.stop()
    assert process.signals == [signal.SIGTERM]


def test_watching_a_silent_job_sends_a_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(jobs, "WATCH_SECONDS", 0.02)
    with (tmp_path / "output").open("w+b") as output:
        items = watch(Job(1, "lab", "a", Sleeper(), output))  # type: ignore[arg-type]
        before = time.monotonic()
        assert next(items) == next(items) == {"status": "running", "output": ""}
        assert time.monotonic() - before < 5
