"""X-rays of models that are distributed over real processes: healthy ones are clean, and each fault is found."""

import re
from pathlib import Path

import pytest

from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.stats.ranks import list_ranks
from tests.diagnostics.ranks import ddp_cases, fsdp_cases
from tests.diagnostics.ranks.launch import launch, mismatches


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_ranks(tmp_path: Path, ranks: int) -> None:
    """The example of the page, and all cases, in one group of processes: to start one takes longer than a case."""
    cases = [*ddp_cases.CASES, *fsdp_cases.CASES]
    script, printed = _example() if ranks == 2 else (None, "")
    records = launch(cases, ranks, tmp_path, script)
    if script is not None:
        assert [(tmp_path / f"script.{rank}.txt").read_text().split() for rank in (0, 1)] == [printed.split(), []]
    wrong = [words for case in cases for r in records[case.name] if r is not None for words in mismatches(case, r)]
    assert wrong == []
    _check_names(records["ddp"][0], records["ddp-inner-model"][0])
    _check_alone(records["one-rank-alone"][0], list(range(1, ranks)))


def _example() -> tuple[str, str]:
    """The script on the page about x-rays, and what it prints."""
    page = (Path(__file__).parents[3] / "docs" / "xray.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(# train.py.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1], found[2]


def _check_names(given_wrapper: XrayRecord | None, given_inner: XrayRecord | None) -> None:
    assert given_wrapper is not None
    assert given_inner is not None
    assert given_wrapper.modules == given_inner.modules
    assert given_wrapper.modules[1].name == "0"


def _check_alone(alone: XrayRecord | None, others: list[int]) -> None:
    assert alone is not None
    assert alone.ranks is not None
    assert list(alone.ranks.missing) == others
    assert any(f"not compared with {list_ranks(others)}" in notice for notice in alone.notices)
