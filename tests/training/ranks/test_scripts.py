"""`normscope.train` in a script of one's own, and what a job finds after a restart."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import normscope
from normscope.errors import ConfigError
from normscope.runs.run import Run
from tests.pairs import chiefly
from tests.training.forked import finish, start_forked
from tests.training.ranks.processes import become_rank, free_port
from tests.training.small_run import TEXT

SETTINGS = {"depth": 1, "width": 16, "heads": 2, "context": 16, "batch": 4, "save_every": 2, "quiet": True}


def script(rank: int, port: int, folder: str, has_group: bool) -> None:
    """A script that trains on two ranks, and afterwards uses its own process group."""
    become_rank(rank, 2, port)
    os.chdir(folder)
    if has_group:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    run = normscope.train("text.txt", steps=3, **SETTINGS)  # type: ignore[arg-type]
    assert run.end_reason == "done"
    if rank:  # which may see an older folder: rank 0 decides
        run.is_done = lambda: False  # type: ignore[method-assign]
        run.checkpoints.last = lambda: 1  # type: ignore[method-assign]
    assert run.resume(quiet=True) == "done"
    with pytest.raises(ConfigError, match="until=2, but the run is already at step 3"):
        run.resume(quiet=True, until=2)
    ones = torch.ones(2)
    dist.all_reduce(ones)
    assert ones.tolist() == [2, 2]


@pytest.mark.parametrize("has_group", chiefly([True], [False]))
def test_a_script_with_a_process_group(tmp_path: Path, has_group: bool) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    port = free_port()
    for process in [start_forked(script, rank, port, str(tmp_path), has_group) for rank in range(2)]:
        finish(process)
    assert Run.open(tmp_path / "runs" / "text").checkpoints.last() == 3


def as_job(folder: str, job: str, restarts: int, steps: int = 2) -> None:
    """A process of a torchrun job, the only one of the job."""
    os.environ |= {"TORCHELASTIC_RUN_ID": job, "TORCHELASTIC_RESTART_COUNT": str(restarts)}
    os.chdir(folder)
    try:
        found = normscope.train("text.txt", steps=steps, **SETTINGS).folder.name  # type: ignore[arg-type]
    except ConfigError as error:
        found = str(error).splitlines()[0]
    Path("found.txt").write_text(found)


def test_a_restarted_job_finds_its_own_run(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    found = []
    for job, *settings in (("a", 0), ("b", 0), ("a", 1), ("b", 2), ("c", 1), ("a", 0), ("a", 1, 3)):
        finish(start_forked(as_job, str(tmp_path), job, *settings))
        found.append((tmp_path / "found.txt").read_text())
    refused = "this job created runs/text with steps=2, and is started again with steps=3"
    assert found == ["text", "text-2", "text", "text-2", "text-3", "text", refused]
