"""`normscope train --nproc N`: kills and restarts, signals, errors."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normscope.runs.run import Run
from tests.pairs import chiefly
from tests.training.ranks.launching import Job, processes_of, start_job, wait_for_step, wait_until
from tests.training.ranks.test_runs import of_kind
from tests.training.small_run import TEXT, last_sums
from tests.training.test_killed import is_writing

STEPS = 12
MODEL = ["--depth", "2", "--width", "16", "--heads", "2", "--context", "16", "--batch", "5", "--model", "dropout=0.1"]


def words(folder: Path, *more: str, steps: int = STEPS, nproc: int = 2) -> list[str]:
    text = folder / "text.txt"
    text.write_text(TEXT)
    intervals = ["--save-every", "2", "--eval-every", "5", "--sample-every", "4"]
    launch = f"--nproc {nproc} --steps {steps} --out {folder}/run".split()
    return ["train", str(text), "--quiet", *MODEL, *intervals, *launch, *more]


def kill_one(job: Job, rng: random.Random) -> None:
    wait_until(job, lambda: len(job.ranks()) == 2)
    os.kill(rng.choice(job.ranks()), signal.SIGKILL)


@pytest.mark.parametrize("parallel", chiefly(["ddp"], ["fsdp"]))
def test_killed_ranks_start_again_and_end_with_the_same_bits(tmp_path: Path, parallel: str) -> None:
    """Rank by rank, kill -9: one before the ranks meet, and one in the first write after a random moment."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    for folder in (straight, broken):
        folder.mkdir()
    assert start_job(straight, *words(straight, "--parallel", parallel)).finish() == (0, "")
    rng = random.Random(1)
    job, run = start_job(broken, *words(broken, "--parallel", parallel, "--max-restarts", "2")), broken / "run"
    kill_one(job, rng)
    wait_for_step(job, run, rng.randrange(2, STEPS - 4))
    wait_until(job, lambda: is_writing(Run.open(run)))
    kill_one(job, rng)
    code, errors = job.finish()
    assert code == 0, errors
    one, other = Run.open(straight / "run"), Run.open(run)
    assert last_sums(one) == last_sums(other)
    kinds = ("step", "validation", "sample", "checkpoint")
    assert of_kind(one, *kinds) == of_kind(other, *kinds)


@pytest.mark.parametrize("number", chiefly([signal.SIGINT], [signal.SIGTERM, signal.SIGHUP]))
def test_a_signal_saves_and_stops_all_ranks(tmp_path: Path, number: signal.Signals) -> None:
    job = start_job(tmp_path, *words(tmp_path, steps=100_000, nproc=3))
    wait_for_step(job, tmp_path / "run", 3)
    assert job.process.pid is not None
    os.kill(job.process.pid, number)
    assert job.finish() == (130, "")
    run = Run.open(tmp_path / "run")
    (finished,) = of_kind(run, "finished")
    steps = [event["step"] for event in of_kind(run, "step")]
    assert finished["reason"] == "stopped"
    assert run.checkpoints.last() == finished["step"] == steps[-1] == len(steps)


def test_without_restarts_a_killed_rank_ends_the_others(tmp_path: Path) -> None:
    job = start_job(tmp_path, *words(tmp_path, steps=100_000, nproc=3))
    wait_for_step(job, tmp_path / "run", 3)
    wait_until(job, lambda: len(job.ranks()) == 3)
    ranks = job.ranks()
    os.kill(ranks[1], signal.SIGKILL)
    code, errors = job.finish()
    assert code in (1, 2)  # of forked ranks, the agent tells only the first that it sees end
    messages = [line for line in errors.splitlines() if "error:" in line]
    lost = "error: lost the connection to another rank: it failed or was killed"
    killed = ["error: rank 1 was ended by SIGKILL (out of memory?)"] if code == 1 else []
    assert sorted(messages) == sorted([*killed, f"[rank 0] {lost}", f"[rank 2] {lost}"])
    for rank in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(rank, 0)


def test_a_mistake_is_shown_once(tmp_path: Path) -> None:
    given = words(tmp_path, steps=2)
    assert start_job(tmp_path, *given).finish() == (0, "")
    code, errors = start_job(tmp_path, *given).finish()
    assert (code, errors.count("already contains a run")) == (2, 1)
    checkpoint = tmp_path / "run" / "checkpoints" / "00000002" / "model-1-of-2.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    code, errors = start_job(tmp_path, "resume", str(tmp_path / "run"), "--steps", "4", "--nproc", "2").finish()
    assert (code, errors.count("error:"), errors.count("is damaged")) == (2, 1, 1), errors


@pytest.mark.exhaustive  # processes that import torch
def test_ctrl_c_of_torchrun_saves_and_stops_all_ranks(tmp_path: Path) -> None:
    given = words(tmp_path, steps=100_000)
    begin, errors, metrics = given.index("--nproc"), tmp_path / "errors", tmp_path / "run" / "metrics.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command += ["normscope", *given[:begin], *given[begin + 2 :]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with errors.open("w") as file:
        torchrun = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, env=environment)
    try:
        deadline = time.monotonic() + 250
        while not (metrics.exists() and '"step": 3,' in metrics.read_text()):
            assert torchrun.poll() is None, errors.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        ranks, start = processes_of(torchrun.pid), time.monotonic()
        torchrun.send_signal(signal.SIGINT)
        assert torchrun.wait(100) != 0
    finally:
        torchrun.kill()  # its ranks stop with it
    assert time.monotonic() - start < 25  # before torchrun kills what has not stopped
    for rank in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(rank, 0)
    run = Run.open(tmp_path / "run")
    (finished,) = of_kind(run, "finished")
    assert finished["reason"] == "stopped"
    assert run.checkpoints.last() == finished["step"] == len(of_kind(run, "step"))
    assert "error:" not in errors.read_text()


@pytest.mark.exhaustive  # processes that import torch, many times
@pytest.mark.parametrize("launcher", ["nproc", "torchrun"])
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_kills_at_any_moment(tmp_path: Path, launcher: str, parallel: str) -> None:
    """Kill -9 of a random rank, eight times: while it starts, trains, saves, validates or samples."""
    kills, steps = 8, 500
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    for folder in (straight, broken):
        folder.mkdir()
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if launcher == "torchrun" else []

    def start(folder: Path) -> subprocess.Popen[bytes]:
        given, restarts = words(folder, "--parallel", parallel, steps=steps), ["--max-restarts", str(kills)]
        if launcher == "torchrun":
            begin = given.index("--nproc")
            given = [*launch, *restarts, "-m", "normscope", *given[:begin], *given[begin + 2 :]]
        else:
            given = ["-m", "normscope", *given, *restarts]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (folder / "errors").open("w") as errors:
            command = [sys.executable, *given]
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)

    assert start(straight).wait(300) == 0, (straight / "errors").read_text()
    process, rng, killed = start(broken), random.Random(launcher + parallel), 0
    metrics = broken / "run" / "metrics.jsonl"

    def size() -> int:
        return metrics.stat().st_size if metrics.exists() else 0

    while killed < kills and process.poll() is None:
        time.sleep(rng.uniform(0.0, 4.0))
        before = size()
        while killed % 2 and process.poll() is None and size() <= before:  # every second time, not before it trains
            time.sleep(0.05)
        if ranks := processes_of(process.pid):
            os.kill(rng.choice(ranks), signal.SIGKILL)
            killed += 1
            while process.poll() is None and {*ranks} & {*processes_of(process.pid)}:
                time.sleep(0.05)
    assert process.wait(300) == 0, (broken / "errors").read_text()
    assert killed == kills, "the run ended before"
    one, other = Run.open(straight / "run"), Run.open(broken / "run")
    assert last_sums(one) == last_sums(other)
    kinds = ("step", "validation", "sample", "checkpoint")
    assert of_kind(one, *kinds) == of_kind(other, *kinds)
