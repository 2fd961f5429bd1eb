"""X-rays of models that are distributed over real processes: healthy ones are clean, and each fault is found."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from normscope.diagnostics.record import XrayRecord
from tests.diagnostics.ranks import ddp_cases, fsdp_cases
from tests.diagnostics.ranks.launch import RankCase, launch, mismatches


def _check(cases: Sequence[RankCase], ranks: int, folder: Path) -> dict[str, list[XrayRecord | None]]:
    """Run the cases in one group of processes: to start one takes longer than a case."""
    records = launch(cases, ranks, folder)
    wrong = [words for case in cases for r in records[case.name] if r is not None for words in mismatches(case, r)]
    assert wrong == []
    return records


@pytest.mark.slow
def test_distributed_data_parallel(tmp_path: Path) -> None:
    """Three processes: with two, none of them would be the odd one."""
    records = _check(ddp_cases.CASES, 3, tmp_path)
    (given_wrapper, *_), (given_inner, *_) = records["ddp"], records["ddp-inner-model"]
    assert given_wrapper is not None
    assert given_inner is not None
    assert [module.name for module in given_wrapper.modules] == [module.name for module in given_inner.modules]
    assert given_wrapper.modules == given_inner.modules
    alone = records["one-rank-alone"][0]
    assert alone is not None
    assert alone.ranks is not None
    assert alone.ranks.missing == (1, 2)
    assert any("not compared with ranks 1 and 2" in notice for notice in alone.notices)


@pytest.mark.slow
def test_fully_sharded(tmp_path: Path) -> None:
    _check(fsdp_cases.CASES, 2, tmp_path)
