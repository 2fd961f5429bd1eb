"""What the commands do is there for Python too, as data."""

from pathlib import Path
from typing import Any

import pytest
import torch

import normscope
from normscope.diagnostics.diff.differences import RecordDiff
from normscope.errors import ConfigError, FileError, NormscopeError
from tests.cli.running import write_text

ANY: Any = normscope  # called with wrong types on purpose


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("public")
    sizes: dict[str, Any] = {"depth": 1, "width": 16, "heads": 2, "context": 16, "batch": 4, "val_fraction": 0.02}
    made = normscope.train(
        write_text(folder),
        out=folder / "run",
        tokenizer="characters",
        steps=3,
        quiet=True,
        model={"bias": True},
        **sizes,
    )
    assert (made.end_reason, made.config.model.bias) == ("done", True)
    return made.folder


def test_quiet_prints_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert normscope.resume(run, quiet=True).end_reason == "done"
    assert capsys.readouterr() == ("", "")


def test_sample_and_chat(run: Path) -> None:
    pieces: list[str] = []
    texts = normscope.sample(run, ["1", "2"], samples=2, max_new_tokens=3, stream=lambda _, piece: pieces.append(piece))
    assert [text.prompt for text in texts] == ["1", "1", "2", "2"]
    assert sorted("".join(pieces)) == sorted("".join(text.text for text in texts))
    conversation = normscope.chat(run)
    reply = "".join(conversation.send("7 "))
    assert conversation.text == f"7 {reply}"


def test_runs_and_reports(run: Path) -> None:
    (summary,), errors = normscope.list_runs(run.parent)
    assert (summary.status, summary.step, errors) == ("done", 3, {})
    assert normscope.report(run).is_file()


def test_xrays_of_a_target(run: Path, tmp_path: Path) -> None:
    result = normscope.xray_target(run, forward_only=True)
    assert result.record.steps_before == 3
    assert result.html.startswith("<!DOCTYPE html>")
    difference = normscope.diff("nanochat", depth=1, model={"context": 16}, cached=True)
    assert isinstance(difference, RecordDiff)
    assert not difference.diverges
    with pytest.raises(ConfigError, match="--depth applies only to presets"):
        normscope.xray_target(run, depth=2)
    with pytest.raises(FileError, match="no such model"):
        normscope.xray_target(tmp_path / "nothing")


def test_drawings_of_a_target(run: Path) -> None:
    assert "GPT" in normscope.draw_target(run).text
    assert normscope.draw_target("gpt2", (2, 8), {"depth": 2}).text.startswith("gpt2 · GPT")
    assert (
        "sandwich" in normscope.draw_block("llama", (2, 8, 16), {"wiring": "sandwich", "heads": 2, "kv_heads": 1}).text
    )
    with pytest.raises(ConfigError, match="are fixed, but got depth"):
        normscope.draw_target(run, model={"depth": 2})


def test_models_by_name_leave_the_random_numbers_as_they_are(run: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    normscope.xray_target("nanochat", depth=1, model={"context": 16}, seed=3)
    normscope.diff(run, cached=True)
    normscope.draw_target(run)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "arguments", "settings"),
    [
        ("xray_target", ["gpt2"], {"depth": 2, "model": {"depth": 3}}),
        ("draw_block", ["gpt2", (2, 8, 16)], {"model": {"width": 32}}),
    ],
)
def test_a_setting_given_twice_is_refused(name: str, arguments: list[Any], settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"is also given as .*\nfix: give it once"):
        getattr(ANY, name)(*arguments, **settings)


def test_claims_are_listed(tmp_path: Path) -> None:
    claims = normscope.list_claims(tmp_path)
    assert len(claims) >= 30
    assert all(outcome is None for _, outcome in claims)


def test_nothing_to_compare_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        normscope.compare(norm=["rms"], out=tmp_path / "out")
    with pytest.raises(ConfigError, match="workers=100000 must be at most"):
        normscope.compare(norm=["rms", "layer"], workers=100_000, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "arguments", "settings"),
    [
        *((name, [5], {}) for name in ("list_runs", "sample", "chat", "resume", "report", "xray_target")),
        *((name, [5], {}) for name in ("draw_target", "draw_block", "list_claims", "write_lab_report")),
        ("draw_target", [[]], {}),
        *(("draw_block", ["gpt2", shape], {}) for shape in (5, "8,16,8", (2, 8, -16), (2, 8.5, 16), (2, 8, 10**30))),
        *(("draw_target", ["gpt2", shape], {}) for shape in (5, (), "2,8", (2, None), (True, 8), (2**60, 8), [[2], 8])),
        ("draw_target", ["vit", (2, 3, "x", 5)], {}),
        ("draw_target", ["gpt2"], {"model": 3}),
        ("draw_target", ["gpt2"], {"model": {5: 3}}),
        ("draw_target", ["gpt2"], {"expand": "yes"}),
        ("draw_block", [[]], {}),
        ("draw_block", ["gpt2", (2, 8, 16)], {"model": {"heads": "x"}}),
        *(("xray_target", [target], {}) for target in (None, ["gpt2"], "x\0", "x" * 5000)),
        ("xray_target", ["gpt2"], {"batch": 2}),
        ("xray_target", ["gpt2"], {"depth": "x"}),
        ("xray_target", ["gpt2"], {"step": "yes"}),
        ("xray_target", ["gpt2"], {"model": {5: 3}}),
        ("xray_target", ["gpt2"], {"depth": 1, "model": {"width": "x"}}),
        ("diff", ["gpt2", 5], {}),
        ("xray_target", ["gpt2"], {"batches": "x"}),
        ("xray_target", ["gpt2"], {"dtype": "int3"}),
        ("xray_target", ["gpt2"], {"model": 3}),
        ("doctor", [], {"recipe": 5}),
        ("compare", [], {"norm": "rms"}),
        ("compare", [], {"norm": ["rms", "layer"], "lr": 5}),
        ("compare", [], {"norm": ["rms", "layer"], "seeds": "x"}),
        ("run_lab", ["no-such-claim"], {}),
        ("train", [], {"model": 3}),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(name: str, arguments: list[Any], settings: dict[str, Any]) -> None:
    with pytest.raises(NormscopeError):
        getattr(ANY, name)(*arguments, **settings)
