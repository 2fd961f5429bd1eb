"""Runs of several ranks: resumed by the same number to the bit, and by another number up to rounding."""

from pathlib import Path
from typing import Any

import pytest

from normscope.runs.metrics_file import read_metrics
from normscope.runs.run import Run
from normscope.runtime.ranks import Ranks
from normscope.training.config import ParallelName
from normscope.training.loop import train_run
from tests.pairs import chiefly
from tests.training.ranks.processes import on_ranks
from tests.training.small_run import last_sums, new_run, train_alone

STEPS = 9


def train(
    ranks: Ranks,
    folder: str,
    until: int | None = None,
    from_step: int | None = None,
    parallel: ParallelName | None = None,
) -> str:
    return train_run(Run.open(Path(folder)), until=until, from_step=from_step, parallel=parallel)


def short_run(folder: Path, **settings: Any) -> Run:
    folder.mkdir()
    return new_run(folder, steps=STEPS, save_every=2, eval_every=4, sample_every=4, xray_every=3, batch=5, **settings)


def of_kind(run: Run, *kinds: str) -> list[dict[str, Any]]:
    different = ("seconds", "tokens_per_second", "path")
    return [
        {name: value for name, value in event.items() if name not in different}
        for event in read_metrics(run.metrics)
        if event["kind"] in kinds
    ]


def notices(run: Run) -> str:
    return "\n".join(event["text"] for event in of_kind(run, "notice"))


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("size", chiefly([3], [2, 4]))
def test_the_same_number_of_ranks_resumes_to_the_bit(tmp_path: Path, size: int, parallel: str) -> None:
    straight, broken = (short_run(tmp_path / name, parallel=parallel) for name in ("straight", "broken"))
    assert on_ranks(size, train, str(straight.folder)) == ["done"] * size
    assert on_ranks(size, train, str(broken.folder), 5) == ["paused"] * size
    on_ranks(size, train, str(broken.folder))
    assert last_sums(broken) == last_sums(straight)
    kinds = ("step", "validation", "sample", "signal")
    assert of_kind(broken, *kinds) == of_kind(straight, *kinds)
    assert (
        f"resumed from step 5 on {size} ranks as before: the bits are those of a run without interruption"
        in notices(broken)
    )
    started = [event["info"]["ranks"] for event in of_kind(straight, "started")]
    assert started == [f"{size} {parallel}"]
    assert f"on cpu by {size} {parallel} ranks, including validation" in (straight.folder / "report.html").read_text()


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_another_number_of_ranks_resumes_up_to_rounding(tmp_path: Path, parallel: str) -> None:
    straight, changing = (
        short_run(tmp_path / name, parallel=parallel, model={"dropout": 0.0}) for name in ("straight", "changing")
    )
    other_parallel = "ddp" if parallel == "fsdp" else "fsdp"
    train_alone(str(straight.folder))
    on_ranks(2, train, str(changing.folder), 3)
    on_ranks(3, train, str(changing.folder), 5, None, other_parallel)
    train_alone(str(changing.folder), until=7)
    on_ranks(2, train, str(changing.folder))
    one, other = (of_kind(run, "step", "validation") for run in (straight, changing))
    assert [event["step"] for event in one] == [event["step"] for event in other]
    assert [event["loss"] for event in one] == pytest.approx([event["loss"] for event in other], rel=1e-4)
    both = f"ranks was 2 and is 3, parallel was {parallel} and is {other_parallel}"
    for change in (both, "ranks was 3 and is 1", "ranks was 1 and is 2"):
        assert f"{change}. Results may differ in the last bits from here on" in notices(changing)
