"""slurm.sh, with an srun and an scontrol that start "machines" on this one."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.jobs import (
    RARELY,
    ROOT,
    SMALL,
    TRIES,
    Start,
    environment,
    errors,
    events,
    kill,
    last_step,
    wait_until,
)
from tests.support import free_port

SCRIPT = ROOT / "examples" / "cluster" / "slurm.sh"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="it is a bash script")

# Runs the command once per machine, and forwards SIGTERM to all of them. If one fails, the others are ended.
SRUN = """#!/bin/bash
[[ $1 == --kill-on-bad-exit=1 ]] || exit 9
shift
trap 'kill -TERM $(jobs -p) 2>/dev/null' TERM
for ((machine = 0; machine < SLURM_NNODES; machine++)); do
  SLURM_NODEID=$machine "$@" &
  started+=($!)
done
code=0
for one in "${started[@]}"; do
  while kill -0 "$one" 2>/dev/null; do wait "$one"; done
  wait "$one"; found=$?
  [[ $found == 0 ]] || { code=$found; kill -TERM "${started[@]}" 2>/dev/null; }
done
exit $code
"""
SCONTROL = """#!/bin/bash
case $1 in
  show) [[ $2 == hostnames && $3 == "$SLURM_JOB_NODELIST" ]] && printf '127.0.0.1\\nnobody\\n' ;;
  requeue) echo "$2" >>requeued ;;
esac
"""
# A torchrun that notes its arguments, and works until it is told to stop.
TORCHRUN = """#!/bin/bash
trap 'exit 143' TERM
echo "$SLURM_NODEID $OMP_NUM_THREADS $*" >>started
[[ $* == *--steps\\ 0* ]] && exit 0
while sleep 0.02; do :; done
"""


def submit(start: Start, folder: Path, *arguments: str, **others: str) -> "subprocess.Popen[Any]":
    """What sbatch does, on two machines."""
    commands = folder / "commands"
    commands.mkdir(exist_ok=True)
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "70017", "SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_NNODES": "2", "RUN": "runs/books"}
    given = environment(**{**job, **others})
    given["PATH"] = os.pathsep.join([str(commands), given["PATH"]])
    return start(["bash", str(SCRIPT), *arguments], folder, given)


def requeued(folder: Path) -> list[str]:
    return (folder / "requeued").read_text().split() if (folder / "requeued").exists() else []


def test_script_has_the_syntax_of_bash_and_of_sbatch() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    lines = SCRIPT.read_text().splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert {"--ntasks-per-node=1", "--requeue", "--open-mode=append", "--signal=B:USR1@180"} <= {*options}
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])  # sbatch reads no further


@pytest.mark.parametrize("end", ["done", "USR1", "TERM"])
def test_one_torchrun_per_machine_is_started_and_only_a_preempted_job_is_queued_again(
    tmp_path: Path, start: Start, end: str
) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "torchrun").write_text(TORCHRUN)
    (tmp_path / "commands" / "torchrun").chmod(0o755)
    sizes = {"SLURM_GPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "10"}
    started = tmp_path / "started"
    environ = {**sizes, "OMP_NUM_THREADS": ""}
    job = submit(start, tmp_path, "books/", "--steps", "0" if end == "done" else "9", **environ)
    if end != "done":
        wait_until(lambda: started.exists() and len(started.read_text().splitlines()) == 2, job)
        os.kill(job.pid, signal.Signals[f"SIG{end}"])
    assert job.wait(timeout=TRIES) == (0 if end == "done" else 143), (tmp_path / "log").read_text()
    assert requeued(tmp_path) == (["70017"] if end == "USR1" else [])
    lines = sorted(started.read_text().splitlines())
    assert [line[:4] for line in lines] == ["0 3 ", "1 3 "]
    assert lines[0][2:] == lines[1][2:]
    assert "--nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:20017 " in lines[0]
    assert "--rdzv-id books " in lines[0]
    assert "-m normscope train books/ --steps " in lines[0]
    assert lines[0].endswith(" --out runs/books")


@pytest.mark.exhaustive
def test_preempted_run_continues_on_two_machines_and_is_that_of_an_uninterrupted_one(
    tmp_path: Path, start: Start
) -> None:
    settings = [*SMALL, *RARELY, "--steps", "120"]
    run = tmp_path / "runs" / "books"
    number = str(10_000 + free_port() % 10_000)
    while True:
        job = submit(start, tmp_path, *settings, SLURM_JOB_ID=number)
        if not requeued(tmp_path):
            wait_until(lambda: last_step(run) >= 10, job)
            os.kill(job.pid, signal.SIGUSR1)
        job.wait(timeout=TRIES)
        kill(job)
        if job.returncode == 0:
            break
        assert requeued(tmp_path) == [number], (tmp_path / "log").read_text()
        assert 10 <= last_step(run) < 120
        assert (run / "checkpoints" / f"{last_step(run):08}").exists()  # nothing is lost
    assert [event["step"] for event in events(run, "step")] == list(range(1, 121))
    assert len(events(run, "started")) == 2
    assert errors(tmp_path) == set()
    local = [sys.executable, "-m", "normscope", "train", *settings, "--nproc", "2", "--out", str(tmp_path / "local")]
    subprocess.run(local, env=environment(), check=True, timeout=TRIES)
    uninterrupted = [event["loss"] for event in events(tmp_path / "local", "step")]
    assert [event["loss"] for event in events(run, "step")] == uninterrupted
