"""What each process does in the test of `sync=True`: its part of every batch, through every norm."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

import normscope as ns
from tests.blocks.norm.cases import PATHS, randn, scramble

STEPS = (True, True, False)  # two batches in training, one in eval mode


@dataclass(frozen=True)
class Job:
    """A norm, the shape of the whole batch, and how many of its samples each rank has."""

    name: str
    make: Callable[[bool], ns.Norm]
    shape: tuple[int, ...]
    split: tuple[int, int]
    mask: tuple[int, ...] | None = None


NORMS: dict[str, tuple[Callable[[bool], ns.Norm], tuple[int, ...], tuple[int, ...]]] = {
    "batch": (lambda sync: ns.BatchNorm1d(3, sync=sync, dtype=torch.float64), (8, 3, 4), (8, 1, 4)),
    "batch-mean-of-all": (
        lambda sync: ns.BatchNorm2d(3, momentum=None, bias=False, sync=sync, dtype=torch.float64),
        (8, 3, 2, 2),
        (8,),
    ),
    "power": (lambda sync: ns.PowerNorm(3, sync=sync, dtype=torch.float64), (8, 4, 3), (8, 4)),
    "power-warmup": (lambda sync: ns.PowerNorm(3, warmup=1, sync=sync, dtype=torch.float64), (8, 4, 3), (8,)),
    "rms": (
        lambda sync: ns.Norm(
            "[b s] d", statistic="rms", state="running", affine="d", d=3, sync=sync, dtype=torch.float64
        ),
        (8, 4, 3),
        (8, 4),
    ),
}

JOBS = [
    Job(f"{name}-{a}-{b}{'-mask' * masked}", make, shape, (a, b), mask if masked else None)
    for name, (make, shape, mask) in NORMS.items()
    for a, b in ((4, 4), (3, 5), (8, 0), (0, 8))
    for masked in (False, True)
] + [
    # One value on each rank would be refused in one process; together they are two.
    Job("batch-1-1", lambda sync: ns.BatchNorm1d(3, sync=sync, dtype=torch.float64), (2, 3), (1, 1)),
]


def run(job: Job, rank: int | None) -> dict[str, Tensor]:
    """Everything that the job gives: for the whole batch in one process, or for one rank's part of it."""
    norm = job.make(rank is not None)
    scramble(norm)
    start, end = (0, job.shape[0]) if rank is None else ((0, job.split[0]), (job.split[0], job.shape[0]))[rank]
    found: dict[str, Tensor] = {}
    for step, training in enumerate(STEPS):
        norm.train(training)
        norm.zero_grad()
        x, grad = randn(job.shape, step)[start:end].clone(), randn(job.shape, 10 + step)[start:end]
        mask = None
        if job.mask is not None:
            mask = (torch.rand(job.mask, generator=torch.Generator().manual_seed(step)) < 0.6)[start:end]
        y = norm(x.requires_grad_(), mask)
        torch.autograd.backward(y, grad)
        assert x.grad is not None
        found |= {f"{step}.output": y.detach(), f"{step}.input": x.grad}
        found |= {f"{step}.gradient.{n}": p.grad for n, p in norm.named_parameters() if p.grad is not None}
        found |= {f"{step}.buffer.{n}": b.clone() for n, b in norm.named_buffers()}
    return {name: value.contiguous() for name, value in found.items()}


def work(rank: int, folder: str, path: str) -> None:
    """The life of one process, on one of the paths that compute a norm."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"  # stay on this machine
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting-point",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),  # a rank that waits for a sum that never comes fails instead of hanging
    )
    with PATHS[path]():
        for job in JOBS:
            save_file(run(job, rank), Path(folder) / f"{job.name}.{rank}.safetensors")
    dist.destroy_process_group()
