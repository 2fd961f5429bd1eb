"""`normscope plan`: a table and a JSON object, of presets and runs."""

import json
from pathlib import Path

import pytest

from tests.cli.running import refused, typed
from tests.training.small_run import new_run

SMALL = "--depth 2 --width 64 --heads 2 --context 64 --vocab-size 500"


def lines_of(out: str) -> dict[str, list[str]]:
    """The cells of the table by the name of their line."""
    found = {}
    for line in out.splitlines():
        cells = [cell.strip() for cell in line.strip().split("  ") if cell]
        found[cells[0] if cells else ""] = cells[1:]
    return found


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = typed(f"plan gpt2 {SMALL} --gpus 2 16 --batch 40", capsys)
    assert code == 0
    assert out.startswith("gpt2: 2 blocks of 64, context 64, 136.2k parameters\nH100 SXM 80 GB: 989 TFLOPS in bfloat16")
    lines = lines_of(out.partition("\n\n")[2])
    assert lines["GPUs"] == ["2", "16"]
    assert lines["windows at a time"] == ["20", "20", "3", "3"]
    assert lines["batch, windows"] == ["40"] * 4
    assert all(cell.endswith("%") for cell in lines["efficiency"])
    assert "Assumed: 40% of the peak" in out
    assert "a model, not a measurement" in out
    assert "--micro-batch" not in out


def test_what_does_not_fit_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = typed(f"plan gpt2 {SMALL} --gpus 2 --memory 0.0015 --parallel ddp", capsys)
    assert code == 0
    assert lines_of(out.partition("\n\n")[2])["efficiency"] == ["-"]
    assert "does not fit" in out
    _, out, _ = typed(f"plan gpt2 {SMALL} --gpus 2 --memory 0.1 --parallel ddp --batch 1000", capsys)
    windows = int(lines_of(out.partition("\n\n")[2])["windows that fit"][0])
    assert f"Micro-batches need --micro-batch: {2 * windows} for 2 GPUs with ddp." in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed(f"plan --preset llama {SMALL} --model tied_head=true --gpus 4 --lora 4 --json", capsys)
    found = json.loads(out)
    assert code == 0
    assert (found["model"]["width"], found["train"]["lora"], found["dtype"]) == (64, 4, "bfloat16")
    assert found["trained"] < found["parameters"]
    ddp, fsdp = found["rows"]
    assert (ddp["parallel"], fsdp["parallel"]) == ("ddp", "fsdp")
    for row in (ddp, fsdp):
        memory, time = row["memory"], row["time"]
        kept = memory["copies"] + memory["activations"] + memory["gathered"]
        assert memory["total"] == memory["weights"] + memory["gradients"] + memory["optimizer"] + kept
        assert time["total"] == pytest.approx(time["compute"] + time["update"] + time["exposed"])
        assert sum(message["sent"] for message in row["messages"]) == pytest.approx(row["sent"])
        assert row["fits"]


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path)
    code, out, _ = typed(f"plan {run.folder} --gpus 2 --json", capsys)
    assert code == 0
    assert json.loads(out)["train"]["batch"] == run.config.train.batch
    assert "are fixed, but got depth" in refused(["plan", str(run.folder), "--depth", "3"], capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gpt2 --preset llama", "are two models"),
        ("gpt2 --gpus 0", "--gpus 0"),
        ("gpt2 --gpu tpu", "unknown GPU 'tpu'"),
        ("gpt2 --mfu 2", "--mfu 2.0 must be at most 1"),
        ("gpt2 --depth 0", "--depth 0"),
        ("gpt2 --depth 2 --model depth=3", "depth is given twice"),
        ("gpt2 --network-bandwidth 0", "--network-bandwidth 0.0"),
        ("gpt2 --micro-batch 3", "give batch too"),
    ],
)
def test_settings_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    assert message in refused(["plan", *words.split()], capsys)
