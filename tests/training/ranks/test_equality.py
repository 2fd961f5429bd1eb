"""Any number of ranks trains like one process: the same losses, gradient norms and weights, up to rounding."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normscope.runtime.ranks import Ranks
from tests.pairs import chiefly, cover
from tests.training.ranks.jobs import AXES, Job, Outcome, train, train_all, train_compiled
from tests.training.ranks.ledger import WINDOWS, ledger_batches, rows_seen
from tests.training.ranks.processes import on_ranks

SIZES = [2, 3]
alone = cache(train)


def all_jobs() -> Iterator[Job]:
    return (Job(*values) for values in itertools.product(*AXES.values()))


def covering_jobs() -> dict[int, list[Job]]:
    """For each number of ranks, the jobs that together cover every pair of values."""
    axes: list[list[Any]] = [SIZES, *map(list, AXES.values())]
    found = defaultdict[int, list[Job]](list)
    for row in cover([len(axis) for axis in axes]):
        size, *values = (axis[i] for axis, i in zip(axes, row, strict=True))
        found[size].append(Job(*values))
    return found


@pytest.mark.parametrize("size", SIZES)
def test_ranks_train_like_one_process(size: int) -> None:
    compare(size, covering_jobs()[size])


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", AXES["preset"])
@pytest.mark.parametrize("trained", AXES["trained"])
def test_ranks_train_like_one_process_in_every_case(size: int, name: str, trained: str) -> None:
    compare(size, [job for job in all_jobs() if (job.preset, job.trained) == (name, trained)])


@pytest.mark.exhaustive  # a minute of compiling C++
def test_ranks_that_compile_train_like_one_process() -> None:
    job = Job("gpt2", "ddp", "7", "text", "muon", "all")
    compare_outcomes(job, on_ranks(2, train_compiled, job))


def compare(size: int, jobs: list[Job]) -> None:
    results: list[list[Outcome]] = on_ranks(size, train_all, jobs)
    for job, *outcomes in zip(jobs, *results, strict=True):
        compare_outcomes(job, outcomes)


def compare_outcomes(job: Job, outcomes: list[Outcome]) -> None:
    wanted, first = alone(job), outcomes[0]
    assert first.losses == pytest.approx(wanted.losses, rel=1e-10), job
    assert first.gradient_norms == pytest.approx(wanted.gradient_norms, rel=1e-8), job
    assert first.state is not None
    assert wanted.state is not None
    for name, tensor in wanted.state.items():
        # Muon's orthogonal steps magnify roundings, and AdamW's of gradients near zero too.
        torch.testing.assert_close(first.state[name], tensor, rtol=1e-5, atol=1e-7, msg=f"{job}: {name}")
    for other in outcomes[1:]:
        assert (other.losses, other.gradient_norms) == (first.losses, first.gradient_norms), job
        for name, tensor in (other.state or {}).items():
            assert torch.equal(tensor, first.state[name]), f"{job}: the ranks have different {name}"


@given(st.integers(0, 1000), st.integers(1, 64))
def test_every_item_is_in_one_part(count: int, size: int) -> None:
    parts = [range(count)[Ranks(rank, size).part(count)] for rank in range(size)]
    assert list(itertools.chain(*parts)) == list(range(count))
    assert {len(part) for part in parts} <= {count // size, math.ceil(count / size)}


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("split", chiefly([(5, 2)], [(5, None), (4, 3), (7, 1)]))
@pytest.mark.parametrize("size", chiefly([3], [1, 2, 4]))
def test_every_window_of_an_epoch_is_computed_once(size: int, split: tuple[int, int | None], parallel: str) -> None:
    batch, micro_batch = split
    steps = math.ceil(WINDOWS / batch)
    by_rank = on_ranks(size, rows_seen, parallel, batch, micro_batch, steps)
    epoch = list[int]()
    for step in range(steps):
        computed = np.concatenate([rank[step] for rank in by_rank])
        wanted = ledger_batches(batch).batch(step)[0]
        assert sorted(computed.tolist()) == sorted(wanted.tolist())
        epoch += wanted[:, 0].tolist()
    assert len({*epoch[:WINDOWS]}) == WINDOWS
