"""`sync=True`: two processes with a part of a batch each do what one process does with the whole."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.multiprocessing.spawn import start_processes

import normscope as ns
from normscope.errors import ConfigError
from tests.blocks.norm.cases import close, close_states, mostly_on, randn, scramble
from tests.blocks.norm.ranks import JOBS, NORMS, STEPS, Job, run, work
from tests.training.forked import ensure_warm_server


def _check(job: Job, folder: Path) -> None:
    whole = run(job, None)
    parts = [load_file(folder / f"{job.name}.{rank}.safetensors") for rank in (0, 1)]
    assert parts[0].keys() == parts[1].keys() == whole.keys()
    for name, expected in whole.items():
        both = [part[name] for part in parts]
        if ".buffer." in name:
            for rank in (0, 1):
                close(both[rank], expected, 1e-10, f"{job.name} {name} on rank {rank}")
        elif ".gradient." in name:
            close(both[0] + both[1], expected, 1e-10, f"{job.name} {name}")
        else:
            close(torch.cat(both), expected, 1e-10, f"{job.name} {name}")


@pytest.mark.slow
@mostly_on("fused")  # float64, which no kernel takes: both are the steps
def test_two_processes_equal_one(tmp_path: Path, path: str) -> None:
    """All norms, splits and masks in one launch, of two copies of a process that has imported everything."""
    ensure_warm_server()
    start_processes(work, args=(str(tmp_path), path), nprocs=2, start_method="forkserver")
    for job in JOBS:
        _check(job, tmp_path)


@pytest.mark.parametrize("name", NORMS)
def test_without_a_process_group_it_is_as_if_off(name: str) -> None:
    make, shape, _ = NORMS[name]
    on, off = make(True), make(False)
    for norm in (on, off):
        scramble(norm)
    for step, training in enumerate(STEPS):
        on.train(training)
        off.train(training)
        assert torch.equal(on(randn(shape, step)), off(randn(shape, step)))
        close_states(on, off, 0.0)


@pytest.mark.parametrize("scope", ["b s [d]", "n c [...]", "n [c h w]", "b [s] d", "... [d]", "(n [m]) [c]"])
def test_samples_that_are_normalized_alone_have_nothing_to_share(scope: str) -> None:
    with pytest.raises(ConfigError, match="does not bracket its first axis"):
        ns.Norm(scope, sync=True)


def test_instance_norm_has_nothing_to_share() -> None:
    with pytest.raises(ConfigError, match="does not bracket its first axis"):
        ns.InstanceNorm2d(3, sync=True)
