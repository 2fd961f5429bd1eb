"""`normscope export`: what it writes and says, and what it refuses."""

from pathlib import Path

import pytest

from normscope.exporting import html
from tests.cli.running import refused, typed
from tests.exporting.test_export import TEMPLATE


@pytest.fixture(autouse=True)
def _template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "read_template", lambda: TEMPLATE)


def test_it_says_where_the_page_is(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    code, out, errors = typed(f"export {trained_run} --to html --weights float32 --out {page} --proof skip", capsys)
    assert (code, errors) == (0, "")
    size = page.stat().st_size / 1e6
    assert out == f"not proved: the proof was skipped\nwrote {page} ({size:.1f} MB); open it in a browser\n"
    assert "run" in page.read_text()


def test_unknown_formats_and_runs_are_refused(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown format --to 'exe'\nfix: use one of html" in refused(
        ["export", str(trained_run), "--to", "exe"], capsys
    )
    assert "--weights 'int4'" in refused(["export", str(trained_run), "--weights", "int4"], capsys)
    assert "is not a run" in refused(["export", "nothing"], capsys)
