"""What reports and files say of ranks."""

import json
from dataclasses import replace
from pathlib import Path

from normscope.diagnostics.findings import find
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.record_json import load_record, record_text, save_record
from normscope.diagnostics.report.page import xray_page
from normscope.diagnostics.report.terminal import render_text
from normscope.diagnostics.stats.ranks import RankDifference, RankRecord, RanksRecord
from tests.diagnostics.made_records import plain

MEMBERS = tuple(RankRecord(rank, 2, 2, 2, True, 0.5 + rank, f"c0ffee{rank}f") for rank in range(2))
CHANGED = RankDifference("weights", "1.weight", ((0,), (1,)), ("0.120", "0.121"), 0.034, "after the last step")
DISTRIBUTED = replace(
    plain(1.0, 1.0, 1.0),
    ranks=RanksRecord(0, "DistributedDataParallel", (0, 1, 2), MEMBERS, compared=6, differences=(CHANGED,)),
)


def of_kind(kind: str, *differences: RankDifference, wrapper: str = "DistributedDataParallel") -> XrayRecord:
    ranks = DISTRIBUTED.ranks
    assert ranks is not None
    kinds = tuple(replace(difference, kind=kind) for difference in differences)
    return replace(DISTRIBUTED, ranks=replace(ranks, wrapper=wrapper, differences=kinds))


def test_a_record_with_ranks_comes_back(tmp_path: Path) -> None:
    save_record(DISTRIBUTED, tmp_path / "xray.json")
    assert load_record(tmp_path / "xray.json") == DISTRIBUTED


def test_a_record_of_one_process_is_written_as_before() -> None:
    assert "ranks" not in json.loads(record_text(plain(1.0)))


def test_reports_show_what_each_rank_did() -> None:
    text, page = render_text(DISTRIBUTED, find(DISTRIBUTED)), xray_page(DISTRIBUTED, find(DISTRIBUTED))
    words = "compared with rank 1 (6 tensors): 1 difference; no x-ray of rank 2"
    assert words in " ".join(text.split())
    assert words in " ".join(page.split())
    assert "       1        2        2        2    train     1.50 c0ffee1f" in text
    assert "<td>c0ffee1f</td>" in page
    assert "Ranks" not in render_text(plain(1.0), [])
    assert "<h2>Ranks" not in xray_page(plain(1.0), [])


def test_weights_have_the_figures_of_all_ranks() -> None:
    (finding,) = find(DISTRIBUTED)
    assert (finding.name, finding.severity, finding.module) == ("weights-differ-between-ranks", "error", "1")
    assert finding.title == "1 parameter of `1` differs on ranks 0 and 1, after the last step: `1.weight`"
    assert finding.evidence["rms"] == "0.120 on rank 0; 0.121 on rank 1"
    assert finding.evidence["difference / rms"] == 0.034


def test_the_cause_is_reported_instead_of_the_weights() -> None:
    in_step = replace(CHANGED, since="in step 1")
    rate = replace(CHANGED, kind="hyperparameters", name="lr of SGD", values=("0.1", "0.2"), difference=None)
    both = of_kind("weights", in_step)
    assert both.ranks is not None
    both = replace(both, ranks=replace(both.ranks, differences=(in_step, rate)))
    assert [(f.name, f.severity) for f in find(both)] == [("hyperparameters-differ-between-ranks", "error")]
    (finding,) = find(of_kind("weights", in_step))
    assert "the optimizers of the ranks do different things" in finding.why


def test_drifted_running_statistics_are_a_warning() -> None:
    little, much = (replace(CHANGED, name="1", difference=shift) for shift in (0.1, 1.5))
    assert [f.severity for f in find(of_kind("running-statistics", little))] == ["note"]
    assert [f.severity for f in find(of_kind("running-statistics", little, much))] == ["warning"]


def test_names_of_many_parameters_are_cut() -> None:
    many = [replace(CHANGED, name=f"{i}.weight") for i in range(9)]
    (finding,) = find(of_kind("weights", *many))
    assert finding.module == ""
    assert finding.title.endswith("`3.weight` and 5 more")
