"""`normscope compare`: a table, a sentence and a page; and what cannot be compared is refused."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from normscope.blocks.activations import ACTIVATIONS
from normscope.blocks.initialization import INITIALIZATIONS
from normscope.blocks.norm.norm_spec import TEXT_NORMS
from normscope.blocks.residual import WIRINGS
from normscope.lab.compare import comparison
from normscope.lab.compare.ranking import too_few_seeds
from normscope.lab.running import time_estimates, workers
from tests.cli.running import entered, refused
from tests.lab.workers import Here

SMALL = ["--width", "16", "--heads", "2", "--context", "16", "--seeds", "2", "--workers", "1"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> int:
    """So many in each run, however fast the machine is."""
    monkeypatch.setattr(comparison, "steps_within", lambda *_: 12)
    return 12


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """All trials run in this process, and what is timed is timed shortly."""
    monkeypatch.setattr(workers, "ProcessWorkers", Here)
    monkeypatch.setattr(time_estimates, "SAMPLE", 0.01)


def test_a_norm_against_another_on_ones_own_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], here: None, steps: int
) -> None:
    text = tmp_path / "my.txt"
    text.write_text("the cat sat on the mat. " * 1000)
    folder = tmp_path / "out"
    command = ["compare", "--norm", "rms,layer", "--depth", "1", "--lr", "0.01", "--data", str(text), *SMALL]
    code, out, _ = entered([*command, "--out", str(folder)], capsys)
    assert code == 0
    assert max(map(len, out.splitlines()[:-1])) <= 80
    heading, ranked, said, *_ = out.split("\n\n")
    assert heading.startswith(f"{steps} steps each, seeds 0 to 1, my.txt; ")
    first, *rows = ranked.splitlines()
    assert [*first.split()[:2], first.split()[-1]] == ["variant", "loss", "ms/step"]
    assert {row.split()[1] for row in rows} == {"rms", "layer"}
    sentence = " ".join(said.splitlines()[:2])
    assert sentence.startswith(("With this budget ", "No difference found between "))
    page = (folder / "report.html").read_text()
    assert sentence[: sentence.index(")")] in page
    assert heading in page
    again = entered([*command, "--out", str(folder)], capsys)
    assert again[1].splitlines()[:-1] == out.splitlines()[:-1]  # from what was kept
    assert out.splitlines()[-1].startswith(f"wrote {folder / 'report.html'}; took ")


def test_a_mistake_leaves_no_folder_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    for wrong in (["--norm", "rms,nonsense"], ["--norm", "rms,layer", "--lr", "fast"]):
        assert entered(["compare", *wrong, "--out", str(folder)], capsys)[0] == 2
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--norm", "rms"], "nothing to compare"),
        (["--norm", "rms,rms"], "'rms' is listed twice"),
        (["--norm", "rms,nonsense"], "there is no norm 'nonsense'"),
        (["--depth", "1,two"], "invalid value '1,two' for --depth: expected comma-separated integers"),
        (["--norm", "rms,layer", "--lr", "fast"], "invalid value 'fast' for --lr: expected auto or"),
        (["--norm", "rms,layer", "--lr", "-1"], "--lr -1.0 must be a finite number above zero"),
        (["--norm", "rms,layer", "--seeds", "1"], "--seeds 1: a single seed gives no confidence interval"),
        (["--norm", "rms,layer", "--minutes", "0"], "--minutes 0.0 must be a finite number above zero"),
        (["--norm", "rms,layer", "--data", "nowhere.txt"], "nowhere.txt does not exist"),
        (["--norm", "rms,layer", "--preset", "gpt9"], "gpt9"),
        (["--width", "48,50", "--heads", "3"], "50"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(["compare", *arguments], capsys)
    assert not list(tmp_path.glob("comparison/trials/*.json"))


@pytest.mark.usefixtures("here", "steps")
def test_what_learns_nothing_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--norm", "rms,layer", "--depth", "1", "--lr", "100000", *SMALL, "--out", str(tmp_path)]
    code, out, _ = entered(command, capsys)
    assert code == 0
    said = " ".join(out.split())
    assert " learned anything: no better than a uniform guess with any of 2 seeds." in said
    assert "No difference" not in out
    assert "No difference" not in (tmp_path / "report.html").read_text()
    assert said.count("2 of 2") == 2
    timing = "ms/step is CPU time on one core, measured with one run at a time"
    assert timing in said
    assert timing in (tmp_path / "report.html").read_text()


@pytest.mark.usefixtures("here", "steps")
def test_runs_are_counted_and_what_is_timed_before_them_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the end no work is left, however many steps each run had."""
    command = ["compare", "--norm", "rms,layer", "--depth", "1", "--lr", "0.01", *SMALL, "--out", str(tmp_path)]
    _, _, errors = entered(command, capsys)
    warning, continued, *counted, last = errors.splitlines()
    assert f"{warning} {continued.strip()}" == f"note: {too_few_seeds(2, 2)}"
    assert last == "4 of 4 trials"
    assert all(re.fullmatch(r"[123] of 4 trials, .* left", line) for line in counted)
    assert len(list(tmp_path.glob("trials/*.json"))) == 6


@pytest.mark.usefixtures("here")
def test_too_little_time_is_told_with_what_it_takes_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    command = ["compare", "--norm", "rms,layer", *SMALL, "--minutes", "0.00001", "--out", str(folder)]
    code, _, errors = entered(command, capsys)
    assert code == 2
    message = r"error: 24 runs of at least 40 steps do not fit into 1e-05 minutes\nfix: --minutes \d+, or fewer"
    assert re.search(message, errors)
    assert not folder.exists()


@pytest.mark.usefixtures("here")
def test_too_little_time_by_the_proper_timing_is_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been a busy moment: the next try measures again."""
    monkeypatch.setattr("normscope.lab.compare.compare.check_time_budget", lambda *_: None)
    command = ["compare", "--norm", "rms,layer", *SMALL, "--minutes", "0.001", "--out", str(tmp_path)]
    assert entered(command, capsys)[0] == 2
    assert not list(tmp_path.glob("trials/*.json"))


def test_what_would_fill_the_memory_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--norm", "rms,layer", "--minutes", "1", "--out", str(tmp_path / "out")]
    for seeds in ("901", "1000000000", "9" * 30):
        assert "must be at most 900\nfix: use fewer" in refused([*command, "--seeds", seeds], capsys)
    for count in ("100000", "9" * 15):
        errors = refused([*command, "--workers", count], capsys)
        assert f"--workers {count} must be at most " in errors
        assert "fix: omit it for one worker per core" in errors
    many = ",".join(map(str, range(1, 10_000)))
    sizes = ["--depth", many, "--width", many, "--context", many]
    assert "combinations are too many\nfix: compare at most 24" in refused([*command, *sizes], capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ("norm", [*TEXT_NORMS, "none", 'or a scope such as "... [d]"']),
        ("wiring", WIRINGS),
        ("activation", ACTIVATIONS),
        ("init", INITIALIZATIONS),
    ],
)
def test_the_help_lists_every_choice(
    option: str, choices: Iterable[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a text of its own: the tables of choices import torch, which would delay the help."""
    monkeypatch.setenv("COLUMNS", "200")
    out = entered(["compare", "--help"], capsys)[1]
    assert re.search(rf"--{option} A,B,\.\.\. +(.*?)\.? *│?\n", out)[1] == ", ".join(choices)  # type: ignore[index]
