"""Notices of a run of several ranks, which are known before any of them computes."""

import dataclasses
from typing import Any

import pytest

from normscope.runtime.ranks import Ranks
from normscope.training.loop import startup_notices
from normscope.training.session import TrainingSession
from tests.training.small_run import new_run


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> TrainingSession:
    session = TrainingSession(new_run(tmp_path_factory.mktemp("run"), steps=2), None, [])
    session.begin(None)
    return session


@pytest.mark.parametrize(
    ("settings", "ranks", "notice"),
    [
        ({"batch": 4}, 4, None),
        ({"batch": 4}, 5, "1 of 5 ranks have no rows to compute: use a batch and micro-batch of at least 5, or 4"),
        ({"batch": 8, "micro_batch": 2}, 3, "1 of 3 ranks have no rows"),
        ({"batch": 2, "micro_batch": 8}, 3, "1 of 3 ranks have no rows"),
        ({"batch": 8, "micro_batch": 3}, 3, None),
    ],
)
def test_ranks_without_rows_are_reported(
    session: TrainingSession,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    ranks: int,
    notice: str | None,
) -> None:
    monkeypatch.setattr(session, "config", dataclasses.replace(session.config, **settings))
    monkeypatch.setattr(session, "ranks", Ranks(0, ranks))
    found = [text for text in startup_notices(session) if "no rows" in text]
    assert [text[: len(notice or "")] for text in found] == ([] if notice is None else [notice])


def test_ranks_that_differ_are_reported(session: TrainingSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "rank_differences", ["kernels is fused on rank 0 and reference on rank 1"])
    assert any(
        text.startswith("the ranks differ: kernels is fused on rank 0 and ref") for text in startup_notices(session)
    )
