"""What results show in a notebook: their page in a frame, or their text, escaped."""

import html
import re
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from normscope.blocks.norm.base import Norm
from normscope.diagnostics.diff.diff import compare
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.report.page import xray_page
from normscope.render.notebook import page_frame, preformatted
from normscope.runs.report.page import report_html
from normscope.runs.report.run_record import read_run_record
from normscope.runs.run import Run
from tests.runs.report.test_page import make_run
from tests.training.observers.simulated import simulated_run


def framed(shown: str | None) -> str:
    found = re.fullmatch(r'<iframe sandbox="allow-scripts" style="[^"]*" srcdoc="([^"]*)"></iframe>', shown or "")
    assert found is not None
    return html.unescape(found[1])


def test_a_frame_contains_the_page_and_nothing_escapes_from_it() -> None:
    page = '<p title="a">1 & 2</p>"></iframe><script>alert(1)</script>'
    assert framed(page_frame(page)) == page
    assert html.unescape(preformatted("<b>\x1b[31m")).endswith("<b>\ufffd[31m</pre>")


def test_xray_and_record_show_the_report_page() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    xray = Xray(model)
    assert xray._repr_html_() is None
    with xray:
        model(torch.ones(2, 4)).sum().backward()
    assert framed(xray._repr_html_()) == framed(xray.record._repr_html_()) == xray_page(xray.record, xray.findings)


def test_a_comparison_shows_its_text() -> None:
    model = nn.Sequential(nn.Linear(4, 8))
    records = []
    for value in (1.0, 2.0):
        with Xray(model) as xray:
            model(torch.full((2, 4), value))
        records.append(xray.record)
    shown = html.unescape(compare(*records)._repr_html_())
    assert shown.startswith("<pre")
    assert "forward: first differs in" in shown


def test_a_run_shows_its_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path, simulated_run())
    run = Run(folder, cast(Any, None), "")  # the config is not used
    assert framed(run._repr_html_()) == report_html(read_run_record(folder))


def test_a_norm_shows_its_scope() -> None:
    assert "n [c h w]" in html.unescape(Norm("n [c h w]", c=2, h=2, w=2)._repr_html_())
