"""`normscope doctor`: three tables, and the settings that are asked about."""

import json

import pytest

from normscope.runtime.precision import BFloat16Probe
from tests.cli.running import refused, typed


@pytest.fixture(autouse=True)
def _no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/runtime/test_precision.py has the real one, which takes seconds."""
    monkeypatch.setattr("normscope.training.doctor.probe_bfloat16", lambda: BFloat16Probe(None, "not tried"))


def test_three_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = "doctor --depth 1 --context 16 --batch 2 --vocab-size 300 --seconds 0.01 --preset llama"
    code, out, errors = typed(words, capsys)
    assert (code, errors) == (0, "")
    assert all(title in out for title in ("this machine", "a run would use", "this config: llama"))
    assert "depth 1, width 32" in out
    assert "bfloat16" in out
    assert "tokens per second" in out
    assert "MB" in out
    assert out.count("\n\n") == 3  # after each of them


def test_a_config_that_cannot_fit_is_not_tried(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normscope.training.memory_estimate.available_memory", lambda: 2**28)
    monkeypatch.setattr("normscope.training.doctor.GPT", None)
    errors = refused(["doctor", "--depth", "8"], capsys)
    assert "weights, gradients and optimizer state of 7.34 M parameters need 84 MB" in errors
    assert "fix: --micro-batch 3 or less" in errors
    assert "fix: a smaller --depth" in refused(["doctor", "--depth", "40"], capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--recipe soup", "unknown recipe 'soup'"),
        ("--preset gpt9", "unknown preset 'gpt9'"),
        ("--depth 0", "--depth 0"),
        ("--batch 0", "--batch 0"),
        ("--context -1", "--context -1"),
        ("--vocab-size 0", "--vocab-size 0"),
        ("--seconds 0", "--seconds 0.0 must be a finite number above zero"),
        ("--seconds -1", "--seconds -1.0"),
        ("--device gpu", "--device 'gpu' cannot be used here"),
    ],
)
def test_settings_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    assert message in refused(["doctor", *words.split()], capsys)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed("doctor --depth 1 --context 16 --batch 2 --vocab-size 300 --seconds 0.01 --json", capsys)
    report = json.loads(out)
    assert (code, report["preset"], report["model"]["context"], report["train"]["batch"]) == (0, "nanochat", 16, 2)
    assert report["cost"]["step_seconds"] > 0
    assert report["machine"]["normscope"]
