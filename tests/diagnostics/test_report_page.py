"""An x-ray as a page: well-formed, alone in the world, small enough, with every finding, figure and way to it."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings

from normscope.diagnostics.findings import Finding, find
from normscope.diagnostics.record import ModuleRecord, XrayRecord
from normscope.diagnostics.report.page import xray_page
from normscope.diagnostics.report.signal_path import signal_path, subsample
from normscope.errors import ConfigError
from normscope.render.chart_panels import shared_x_scale
from tests.diagnostics.made_records import findings, plain, seen, signal, strange_records, transformer, weight

seeded = settings(derandomize=True, deadline=None, max_examples=40)
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Reads a page, and complains where tags are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if "href" in given else []
        assert not {"src", "srcset", "action", "data"} & given.keys()
        assert not any(name.startswith("on") for name in given)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"] and self.open[-1:] != ["script"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def without_spaces(words: str) -> str:
    return "".join(words.split())


def test_a_page_is_well_formed_and_needs_nothing_else() -> None:
    html = xray_page(transformer(), findings())
    page = Page(html)
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    for word in ("http://", "https://", "src=", "@import", "url("):
        assert word not in html
    assert "default-src 'none'" in html
    assert html.count("prefers-color-scheme: dark") == 3  # of the page, of charts, of the x-ray
    assert "@media print" in html


def test_every_root_of_the_module_tree_is_open() -> None:
    modules = [ModuleRecord(f"{root}{part}", "Block") for root in "ab" for part in ("", ".0", ".0.x", ".1", ".1.x")]
    opened = re.findall(r'<details id="m(\d+)" open', xray_page(XrayRecord("Net", tuple(modules), 1, 0), []))
    assert [modules[int(number)].name for number in opened] == ["a", "a.0", "b", "b.0"]


def test_every_finding_is_there_and_leads_to_its_module() -> None:
    html = xray_page(transformer(), findings())
    page = Page(html)
    for finding in findings():
        assert finding.title in page.text
        assert finding.fix in page.text
        assert finding.module in page.text
    assert {"f0", "f1", "f2"} <= set(page.ids)
    rows = re.findall(r'<a class="module" href="#(m\d+)"><code>([^<]+)</code>', html)
    assert len(rows) == 3
    record = transformer()
    assert all(record.modules[int(row[1:])].name == name for row, name in rows)
    flags = re.findall(r'<a href="#(f\d+)"><g class="flag (\w+)">', html)
    assert sorted(flags) == [("f0", "warning"), ("f1", "warning"), ("f2", "error")]


def test_a_flag_stands_at_the_dot_that_shows_its_module() -> None:
    """A module of a branch: where the branch is added. A block or the model: its output, not the dot before it."""
    record = transformer(depth=2)
    titles = [point.title for point in signal_path(record)]
    shown = {
        "": "head",
        "embedding": "embedding",
        "blocks.0": "blocks.0 + mlp",
        "blocks.0.norm": "blocks.0 + attention",
        "blocks.1.attention": "blocks.1 + attention",
        "blocks.1.relu()": "blocks.1 + mlp",
    }
    x = shared_x_scale(len(titles))
    for module, title in shown.items():
        html = xray_page(record, [replace(findings()[0], module=module)])
        flag = re.search(r'<line x1="([\d.]+)" x2="\1"[^>]*/><circle cx="\1"', html)
        assert flag is not None
        assert float(flag[1]) == pytest.approx(x.position(titles.index(title)), abs=0.1), module


def test_close_dots_share_a_flag_with_a_pole_to_each() -> None:
    record = plain(*[1.0] * 200)
    html = xray_page(record, [replace(findings()[0], module=name) for name in ("20", "21")])
    ((poles, flag),) = re.findall(r'<g class="flag[^>]*><title>[^<]*</title>(.*?)<circle cx="([\d.]+)"', html)
    feet = re.findall(r'x2="([\d.]+)"', poles)
    x = shared_x_scale(200)
    assert [float(flag), *map(float, feet)] == pytest.approx([x.position(i) for i in (20, 20, 21)], abs=0.1)


def test_the_verdict_is_one_sentence_on_top() -> None:
    text = Page(xray_page(transformer(), findings())).text
    assert "1 error and 2 warnings." in text
    assert text.index("2 warnings.") < text.index("Signal by depth") < text.index("Modules")
    assert "No problems found" in Page(xray_page(transformer(), [])).text


def test_the_points_of_a_residual_model_are_its_additions() -> None:
    points = signal_path(transformer(depth=2))
    assert [point.title for point in points] == [
        "embedding",
        "blocks.0 + attention",
        "blocks.0 + mlp",
        "blocks.1 + attention",
        "blocks.1 + mlp",
        "head",
    ]
    first = points[2]
    assert (first.rms, first.gradient) == (2.0, 0.004)
    assert first.branch is not None
    assert first.branch.ratio == pytest.approx(0.5)


def test_the_points_of_another_model_are_its_layers_in_order() -> None:
    points = signal_path(plain(1.0, 2.0, 3.0))
    assert [(point.title, point.rms) for point in points] == [("0", 1.0), ("1", 2.0), ("2", 3.0)]


def test_some_of_many_points_have_both_ends_and_what_is_named() -> None:
    points = signal_path(plain(*(float(i + 1) for i in range(500))))
    chosen = subsample(points, 40, keep=[123])
    assert len(chosen) <= 40
    assert {"0", "123", "499"} <= {point.label for point in chosen}
    assert [point.order for point in chosen] == sorted(point.order for point in chosen)


def test_a_larger_signal_is_higher_in_the_picture() -> None:
    html = xray_page(plain(1.0, 100.0, 10.0), [])
    path = re.search(r'<path class="line a" d="([^"]+)"', html)
    assert path is not None
    heights = [float(y) for _, y in re.findall(r"[ML](\S+?) ([\d.]+)", path.group(1))]
    assert heights[1] < heights[2] < heights[0]
    assert heights[0] - heights[2] == pytest.approx(heights[2] - heights[1], abs=0.3)  # equal ratios


def test_the_map_of_attention_has_a_cell_for_each_head_of_each_layer() -> None:
    html = xray_page(transformer(depth=3), [])
    cells = re.findall(r'<rect class="cell"[^>]*style="fill-opacity:([\d.]+)"><title>([^<]+)</title>', html)
    assert len(cells) == 6
    assert "blocks.2.attention\nhead 1\nentropy 0.200" in cells[5][1]
    assert float(cells[1][0]) < float(cells[3][0]) < float(cells[5][0]) < float(cells[0][0])


def test_update_ratios_are_drawn_and_listed() -> None:
    text = Page(xray_page(transformer(), [])).text
    assert "blocks.0.mlp.weight update 0.0100 of its rms" in text
    assert "typical: 0.001" in text
    without = transformer()
    modules = tuple(replace(m, parameters=(weight(2, 2, update_ratio=None),)) for m in without.modules[1:2])
    assert "No optimizer step was recorded" in xray_page(replace(without, modules=modules), [])


@pytest.mark.parametrize("name", ["convnet", "encoder", "partly used", "broken"])
def test_models_that_really_ran(name: str) -> None:
    record = seen(name)
    found = find(record)
    page = Page(xray_page(record, found))
    assert all(without_spaces(finding.title.replace("`", "")) in without_spaces(page.text) for finding in found)
    assert len(page.ids) >= len(record.modules)
    assert "nan" in page.text or name != "broken"


@seeded
@given(strange_records())
def test_no_name_and_no_figure_breaks_a_page(record: XrayRecord) -> None:
    found = [Finding("<b>", "warning", module.name, "a & b", {"<i>": math.inf}) for module in record.modules[:2]]
    page = Page(xray_page(record, found))
    assert len(page.ids) == len(set(page.ids))


def test_names_are_text_and_never_markup() -> None:
    name = '<script>alert("x")</script>'
    modules = (
        ModuleRecord("", name, order=0),
        ModuleRecord(name, name, order=1, output_shapes=((2,),), output=signal(1.0)),
    )
    record = XrayRecord(name, modules, 1, 0, notices=(name,), label=name)
    html = xray_page([record, record], [Finding(name, "error", name, name, {name: name}, name, name)])
    assert name not in html
    assert Page(html).tags.count("script") == 1


@pytest.mark.parametrize("alike", [True, False])
def test_a_model_of_thousands_of_modules_makes_a_page_below_two_megabytes(alike: bool) -> None:
    record = transformer(depth=200) if alike else plain(*(float(i % 7 + 1) for i in range(1_000)))
    found = [Finding("late", "warning", record.modules[-3].name, "late in the model")]
    assert len(record.modules) > 1_000
    html = xray_page(record, found)
    assert len(html.encode()) < 2_000_000
    page = Page(html)
    assert "late in the model" in page.text
    many = transformer(depth=400) if alike else plain(*(float(i % 7 + 1) for i in range(3_000)))
    html = xray_page(many, [])
    assert len(html.encode()) < 2_000_000
    assert ("more with the same structure as 0" if alike else "more modules are in the record") in html


def test_several_records_have_curves_over_the_steps() -> None:
    records = [transformer(label=f"step {10 * i}", gain=1.0 + i) for i in range(4)]
    html = xray_page(records, findings())
    text = Page(html).text
    assert "Training steps" in text
    assert "from step 0 to step 30" in text
    assert "last of 4 x-rays" in text
    assert html.count('viewBox="0 0 180 78"') == 2 * len(signal_path(records[-1]))
    assert "Training steps" not in xray_page(records[-1], findings())
    assert xray_page(records[-1:], findings()) == xray_page(records[-1], findings())


@pytest.mark.parametrize("labels", [("", ""), ("9", "3"), ("warm", "cold")])
def test_steps_without_numbers_stand_in_their_order(labels: tuple[str, str]) -> None:
    assert "Training steps" in xray_page([transformer(label=label) for label in labels], [])


def test_a_record_is_rendered_without_torch() -> None:
    modules = "normscope.diagnostics.report.page, normscope.diagnostics.report.terminal"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"


def test_no_records_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one record"):
        xray_page([], [])


@pytest.mark.parametrize(
    "record",
    [
        XrayRecord("Net", (), 0, 0),
        XrayRecord("Linear", (ModuleRecord("", "Linear", order=0, flops=0, output=signal(0.0)),), 1, 0),
        plain(0.0, 0.0),
        plain(math.nan, math.inf, 1.0, non_finite=True),
        replace(plain(1.0, 2.0), modules=tuple(replace(m, gradient=None) for m in plain(1.0, 2.0).modules)),
    ],
    ids=["nothing", "one module", "zeros", "not finite", "no gradients"],
)
def test_what_is_missing_is_left_out(record: XrayRecord) -> None:
    page = Page(xray_page(record, []))
    assert "X-ray of" in page.text
    assert "NaN" not in page.text
