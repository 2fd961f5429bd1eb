"""An x-ray as text: golden pictures, nothing too wide, every finding told, nothing that breaks it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from torch import nn

from normscope.diagnostics.collect import parameters
from normscope.diagnostics.diff.diff import compare
from normscope.diagnostics.findings import SEVERITIES, Finding, find
from normscope.diagnostics.probe import Xray, xray
from normscope.diagnostics.record import ModuleRecord, XrayRecord
from normscope.diagnostics.report.diff import render_diff
from normscope.diagnostics.report.page import xray_page
from normscope.diagnostics.report.terminal import render_rich, render_text
from normscope.diagnostics.watchers.losses import objectives
from normscope.inspection.xray import XrayResult
from tests.diagnostics.made_records import findings, names, plain, seen, signal, strange_records, transformer

GOLDEN = Path(__file__).parent / "golden"
seeded = settings(derandomize=True, deadline=None, max_examples=30)

wrongs = st.tuples(names, st.sampled_from(SEVERITIES), names)


def widest(text: str) -> int:
    return max(map(cell_len, text.splitlines()), default=0)


@pytest.mark.parametrize(("name", "encoding"), [("xray", "utf-8"), ("xray_ascii", "ascii")])
def test_the_golden_text(name: str, encoding: str) -> None:
    drawn = render_text(transformer(depth=5), findings(), encoding=encoding)
    assert drawn == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_plain_characters_do_for_a_terminal_without_others() -> None:
    assert render_text(transformer(), findings(), encoding="ascii").isascii()
    assert render_text(transformer(), findings(), encoding="no such encoding").isascii()
    assert not render_text(transformer(), findings(), encoding="utf-8").isascii()


def test_colours_are_an_addition() -> None:
    coloured = render_text(transformer(), findings(), color=True)
    assert "\x1b[" in coloured
    assert "\x1b[" not in render_text(transformer(), findings())
    assert render_rich(transformer(), findings()).plain == render_text(transformer(), findings())
    for word in ("ERROR", "WARNING"):
        assert word in render_text(transformer(), findings())


@seeded
@given(strange_records(), st.lists(wrongs, max_size=4), st.integers(60, 140))
def test_no_line_is_too_wide_and_no_figure_breaks_it(
    record: XrayRecord, wrong: list[tuple[str, str, str]], width: int
) -> None:
    found = [Finding(kind, severity, "", kind, {"a": math.nan}, why, why) for kind, severity, why in wrong]
    found += [Finding("here", "note", module.name, "here") for module in record.modules[:2]]
    for encoding in ("utf-8", "ascii"):
        text = render_text(record, found, width=width, encoding=encoding)
        assert widest(text) <= width
        assert all(character == "\n" or character.isprintable() for character in text)


def test_deep_trees_and_long_names_stay_within_eighty() -> None:
    name, modules = "", [ModuleRecord("", "Deep", order=0)]
    for i in range(40):
        name = f"{name}.{'layer' * 6}{i}" if name else "first"
        modules.append(
            ModuleRecord(name, "A" * 70, order=i + 1, output_shapes=((10**9, 10**9, 10**9),), output=signal(1e-300))
        )
    text = render_text(XrayRecord("Deep", tuple(modules), 1, 0), [])
    assert widest(text) <= 80
    assert "1.0e-300" in text


def test_blocks_that_are_built_alike_are_folded_but_not_those_that_findings_name() -> None:
    text = render_text(transformer(depth=12), findings())
    assert "Block x 10" in text  # of blocks 0 to 11, 1 and 2 are named and stand for themselves; 0 is the example
    assert [line for line in text.splitlines() if line.strip("│├└ ").startswith("7 Block")] == []
    mlp = [line for line in text.splitlines() if "mlp Linear <" in line]
    assert len(mlp) == 1
    assert "Block x 12" in render_text(transformer(depth=12), [])
    assert " x " not in render_text(transformer(depth=2), [])


def test_the_parameters_of_a_folded_model_are_all_counted() -> None:
    record = transformer(depth=12)
    root = next(line for line in render_text(record, []).splitlines() if line.startswith("Tiny "))
    assert f"{record.parameter_count / 1000:.2f} k" in root


def test_every_finding_is_told_with_its_evidence_and_its_fix() -> None:
    text = render_text(transformer(), findings())
    for words in ("3.40e38", "float16", "0.250", "mend", "wait", "blocks.0.relu(), ", "dead 1", "passes nothing on"):
        assert words.rstrip(", ") in text
    assert text.index("makes numbers that are not finite") < text.index("1 of 8 are zero")
    assert "also blocks.2.relu()" in text


def test_printing_an_xray_gives_the_findings_first_and_a_finding_one_paragraph() -> None:
    first = nn.Linear(8, 32)
    net = nn.Sequential(first, nn.ReLU(), nn.Linear(32, 2))
    x = xray(net)
    assert str(x) == repr(x) == "<Xray of Sequential, not finished>"
    nn.init.constant_(first.bias, -100.0)
    with x:
        net(torch.randn(64, 8)).square().mean().backward()
    assert repr(x) == "<Xray of Sequential>"
    shown = render_text(x.record, x.findings)
    assert str(x) == render_text(x.record, x.findings, tree=False).rstrip()
    assert shown.startswith(str(x).partition("\n\n")[0])
    assert "fix  " in str(x)
    assert "Modules" in shown[len(str(x)) :]
    result = XrayResult((x.record,), x.findings)
    assert str(result) == str(x)
    finding = x.findings[0]
    assert str(finding) == f"{finding.severity.capitalize()}: {finding.title}. {finding.why} Fix: {finding.fix}"
    assert repr(finding).startswith(f"Finding(name='{finding.name}', severity=")
    assert finding.why not in repr(result)
    assert str(compare(x.record, x.record)) == render_diff(compare(x.record, x.record)).plain.rstrip()


def test_what_never_ran_is_listed() -> None:
    text = render_text(transformer(), [])
    assert "Never ran: spare (Linear)" in text
    assert any("spare" in line and "never ran" in line for line in text.splitlines())
    assert "Never ran" not in render_text(transformer(spare=False), [])


def test_second_names_and_lists_are_not_said_never_to_have_run() -> None:
    record = transformer(spare=False)
    twin = ModuleRecord("twin", "Linear", alias_of="head")
    text = render_text(replace(record, modules=(*record.modules, twin)), [])
    assert "Never ran" not in text
    assert "= head" in text


def test_a_module_whose_weights_were_used_without_calling_it_is_not_idle() -> None:
    text = render_text(seen("encoder"), [])  # attention multiplies by its out_proj's weight itself
    assert "out_proj" in text
    assert "ever ran" not in text


def test_longer_bars_are_larger_values() -> None:
    lines = render_text(plain(1e-8, 1e-4, 1.0), []).splitlines()
    rows = [line for line in lines if "Linear" in line and "█" in line]
    assert [row.count("█") for row in rows] == sorted(row.count("█") for row in rows)
    assert len(rows) == 2  # the smallest has no full cell


def test_zeros_and_what_is_not_finite_are_shown_as_such() -> None:
    text = render_text(plain(0.0, 0.5, non_finite=True), [])
    assert "0!" in text
    assert "0.500!" in text
    assert "!: some values are NaN or Inf" in text
    assert "!" not in render_text(plain(0.0, 0.5), [])


@pytest.mark.parametrize("name", ["convnet", "encoder", "partly used", "broken"])
def test_models_that_really_ran(name: str) -> None:
    record = seen(name)
    for width in (60, 80, 120):
        text = render_text(record, find(record), width=width)
        assert widest(text) <= width
    assert all(module.kind in text or module.is_function for module in record.ran)


def test_nothing_and_next_to_nothing() -> None:
    empty = render_text(XrayRecord("Net", (), 0, 0), [])
    assert "The model did not run" in empty
    alone = XrayRecord(
        "Linear", (ModuleRecord("", "Linear", order=0, output_shapes=((2, 3),), output=signal(1.0)),), 1, 0
    )
    assert "No problems found (checked forward only" in render_text(alone, [])


def trained_briefly(batches: int) -> Xray:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with Xray(model) as x:
        for _ in range(batches):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.eye(4)), torch.tensor([0, 1, 2, 0])).backward()
            optimizer.step()
    return x


def test_the_loss_is_a_curve() -> None:
    record = trained_briefly(6).record
    line = next(line for line in render_text(record, []).splitlines() if line.startswith("Loss"))
    first, last = (f"{record.losses[i].value:.3g}" for i in (0, -1))
    assert line.startswith("Loss █")
    assert line.endswith(f"▁ {first} to {last} over 6 values")
    assert f"Loss  {first} to" in render_text(record, [], encoding="ascii")
    assert "Loss in the order of the batches" in xray_page(record, [])
    few = trained_briefly(2).record
    assert not any(line.startswith("Loss") for line in render_text(few, []).splitlines())
    assert "Loss in the order of the batches" not in xray_page(few, [])


def test_a_long_run_counts_all_steps_and_says_that_the_curve_is_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "_MAX_STEPS", 4)
    monkeypatch.setattr(objectives, "MAX_VALUES", 4)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    with Xray(model) as x:
        for _ in range(6):
            model(torch.eye(4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    record = x.record
    assert [step.number for step in record.steps] == [1, 2, 3, 6]
    report = render_text(record, [])
    assert "6 batches, 6 backward passes, 6 steps of" in report
    assert "(the first 4)" in report
    assert "Loss in the order of the batches (the first 4)" in xray_page(record, [])


def test_modules_are_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    x = trained_briefly(3)
    x.show(tree=False)
    brief = capsys.readouterr().out
    assert brief == f"{x}\n"
    x.show()
    assert "Modules" in capsys.readouterr().out
    assert "Modules" not in brief
    assert "15 parameters" in brief
