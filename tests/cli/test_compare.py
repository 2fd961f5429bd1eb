"""`normscope compare`: a table, a sentence and a page; and what cannot be compared is refused."""

from pathlib import Path

import pytest

from tests.cli.running import entered, refused

SMALL = ["--width", "16", "--heads", "2", "--context", "16", "--minutes", "0.15", "--seeds", "2", "--workers", "1"]


def test_a_norm_against_none_on_ones_own_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "my.txt"
    text.write_text("the cat sat on the mat. " * 1000)
    folder = tmp_path / "out"
    command = ["compare", "--norm", "rms,layer", "--depth", "1", "--lr", "0.01", "--data", str(text), *SMALL]
    code, out, _ = entered([*command, "--out", str(folder)], capsys)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["variant", "loss"]
    assert {line.split()[1] for line in lines[1:3]} == {"rms", "layer"}
    assert lines[4].startswith(("With this budget ", "No difference found between "))
    page = (folder / "report.html").read_text()
    assert lines[4] in page.replace("&#x27;", "'")
    again = entered([*command, "--out", str(folder)], capsys)
    assert again[1] == out  # from what was kept


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--norm", "rms"], "there is nothing to compare"),
        (["--norm", "rms,rms"], "'rms' is there twice"),
        (["--norm", "rms,nonsense"], "there is no norm 'nonsense'"),
        (["--depth", "1,two"], "--depth '1,two' must be whole numbers"),
        (["--norm", "rms,layer", "--lr", "fast"], "--lr 'fast' must be auto, or numbers"),
        (["--norm", "rms,layer", "--lr", "-1"], "--lr -1.0 must be a finite number above zero"),
        (["--norm", "rms,layer", "--seeds", "1"], "--seeds 1 say nothing of chance"),
        (["--norm", "rms,layer", "--minutes", "0"], "--minutes 0.0 must be a finite number above zero"),
        (["--norm", "rms,layer", "--data", "nowhere.txt"], "cannot read nowhere.txt"),
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


def test_too_little_time_is_told_with_what_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--norm", "rms,layer", *SMALL, "--minutes", "0.001", "--out", str(tmp_path)]
    code, _, errors = entered(command, capsys)
    assert code == 2
    assert "error: 12 runs do not fit into 0.001 minutes\nfix: --minutes 1" in errors
