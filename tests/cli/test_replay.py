"""`normscope replay`: the fault again, or the news that it is gone."""

from pathlib import Path

import pytest
import torch

from normscope.models.gpt import GPT
from normscope.models.presets import nanochat
from normscope.training.nan_guard import save_nan_bundle
from tests.cli.running import refused, typed
from tests.support import random_tokens, scramble


@pytest.mark.parametrize("bad", [True, False])
def test_what_was_then_and_what_is_now(tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: bool) -> None:
    model = GPT(nanochat(vocab_size=11, context=8, depth=1, width=8, heads=1))
    scramble(model)
    if bad:
        with torch.no_grad():
            model.get_parameter("blocks.0.mlp.up.weight").fill_(3e38)
    tokens = random_tokens(11, 2, 8)
    save_nan_bundle(tmp_path / "fault", model, tokens, tokens, {"error": "the loss is nan at step 3"})
    code, out, _ = typed(f"replay {tmp_path / 'fault'}", capsys)
    then, now = out.splitlines()
    assert then == "then  the loss is nan at step 3"
    assert code == int(bad)
    assert now.startswith("now   blocks.0.mlp.up: output is not finite" if bad else "now   all values are finite")


def test_what_holds_no_fault_is_refused(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("nothing", str(trained_run), str(trained_run / "checkpoints" / "00000004")):
        errors = refused(["replay", folder], capsys)
        assert f"{folder} is not a NaN bundle" in errors
        assert "fix: pass a folder such as RUN/nan/00000123-batch-122" in errors


def test_a_device_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, tokens = GPT(nanochat(vocab_size=11, context=8, depth=1, width=8, heads=1)), random_tokens(11, 2, 8)
    save_nan_bundle(tmp_path / "fault", model, tokens, tokens, {"error": "the loss is nan", "device": "far-away"})
    assert "'far-away' cannot be used here" in refused(["replay", str(tmp_path / "fault")], capsys)
    assert typed(f"replay {tmp_path / 'fault'} --device cpu --precision float32", capsys)[0] == 0
