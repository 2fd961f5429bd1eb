"""`normscope train`: from text to a run, and every way to type it wrong."""

import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from normscope.cli.options import read_arguments
from normscope.cli.train import (
    FinetuningOptions,
    HardwareOptions,
    IntervalOptions,
    OptimizationOptions,
    Train,
    must_launch,
)
from normscope.runs.run import Run
from normscope.training.config import TrainConfig
from tests.cli.running import SMALL, entered, refused, typed, write_text
from tests.training.forked import start_command


def test_a_text_becomes_a_run(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, errors = entered(["train", "milk.txt", *SMALL, "5"], capsys)
    assert (code, errors) == (0, "")
    assert out.startswith("training GPT") or "training" in out.splitlines()[0]
    assert "normscope sample runs/milk" in out
    run = Run.open(Path("runs/milk"))
    assert run.checkpoints.last() == run.config.train.steps == 5
    assert (run.folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert run.config.model.width == 16


def test_each_run_has_a_folder_of_its_own(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert entered(["train", "milk.txt", *SMALL, "1"], capsys)[0] == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["milk", "milk-2"]
    assert entered(["train", "*.txt", *SMALL, "1"], capsys)[0] == 0
    assert Path("runs/run").is_dir()


def test_settings_reach_the_run(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "2", "--out", "r", "--preset", "llama", "--model", "norm=layer", "bias=true", "logit-cap=20"]
    words += [
        "--grad-clip",
        "0",
        "--schedule",
        "cosine",
        "--optimizer",
        "adamw",
        "--micro-batch",
        "2",
        "--prompt",
        "7 bot",
    ]
    words += ["--on-nan", "rollback", "--split", "tail", "--seed", "5", "--device", "cpu"]
    code, _, errors = entered(["train", "milk.txt", *words], capsys)
    assert (code, errors) == (0, "")
    run = Run.open(Path("r"))
    train, model = run.config.train, run.config.model
    assert (train.grad_clip, train.schedule, train.optimizer, train.micro_batch) == (None, "cosine", "adamw", 2)
    assert (train.on_nan, train.seed, run.config.prompt) == ("rollback", 5, "7 bot")
    assert (model.activation, model.bias, model.logit_cap) == ("swiglu", True, 20)
    assert run.corpus().record.settings["split"] == "tail"


def test_every_training_setting_is_an_option() -> None:
    groups = (OptimizationOptions(), IntervalOptions(), FinetuningOptions(), HardwareOptions())
    assert {name for group in groups for name in vars(group)} == set(TrainConfig(steps=1, batch=1).to_json())


def test_what_is_piped_in_is_read(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(Path("milk.txt").read_bytes())))
    assert entered(["train", "-", *SMALL, "1"], capsys)[0] == 0
    assert Path("runs/run/config.json").is_file()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO()))
    assert "the sources have no text" in refused(["train", "-", *SMALL, "1"], capsys)


def test_a_prepared_folder_is_taken(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("prepare milk.txt --out tokens --tokenizer bytes", capsys)[0] == 0
    line = "--depth 2 --width 16 --heads 2 --context 16 --batch 4 --steps 2 --out r"
    assert typed(f"train tokens {line}", capsys)[0] == 0
    assert Run.open(Path("r")).config.model.vocab_size == 257
    assert "would have no effect" in refused(["train", "tokens", "--tokenizer", "bpe"], capsys)


WRONG = [
    ("--recipe soup", "unknown recipe 'soup'; choose one of dial, sprint"),
    ("--preset gpt9", "unknown preset 'gpt9'; choose one of gpt2, nanochat, nanochat-2026-07, llama"),
    ("--steps 0", "--steps 0 must be a positive integer"),
    ("--steps -5", "--steps -5"),
    ("--batch 0", "--batch 0"),
    ("--micro-batch -1", "--micro-batch -1"),
    ("--depth 0", "--depth 0"),
    ("--width 15", "--width 15"),
    ("--context 0", "--context 0"),
    ("--context 20000", "--context 20000 needs at least 20001"),
    ("--lr -1", "--lr -1.0"),
    ("--matrix-lr nan", "--matrix-lr nan"),
    ("--weight-decay inf", "--weight-decay inf"),
    ("--ns-steps 6", "--ns-steps 6 must be an integer from 1 to 5"),
    ("--momentum 1", "--momentum 1"),
    ("--warmup 0.8 --decay 0.8", "must be at most 1"),
    ("--grad-clip -1", "--grad-clip -1.0"),
    ("--depth 1000000000", "--depth 1000000000 is too large"),
    ("--seed -1", "--seed -1"),
    ("--seed 99999999999999999999", "--seed 99999999999999999999"),
    ("--device gpu", "--device 'gpu' cannot be used here"),
    ("--device meta", "--device 'meta' cannot be used here"),
    ("--val-fraction 2", "--val-fraction 2.0"),
    ("--tokenizer soup", "there is no tokenizer file soup"),
    ("--vocab-size 300", "so --vocab-size 300 would have no effect\nfix: omit it"),
    ("--model colour", "--model expects NAME=VALUE"),
    ("--model colour=red", "a GPT has no setting 'colour'"),
    ("--width 8 --model width=16", "width is given twice: as an argument and in model"),
    ("--model norm=rms norm=layer", "norm is given twice in --model"),
    ("--model norm=batch", "brackets the token axis"),
    (
        "--model vocab-size=99",
        "vocab_size cannot be set here: it comes from the tokenizer\nfix: --tokenizer",
    ),
    ("--prompt é", "'é' (U+00E9"),
    ("--prompt \udcff", "lone surrogate"),
    ("--column", "a value is required for --column"),
    ("--steps abc", "invalid value 'abc' for --steps: expected an integer\nfix: normscope train --help"),
    ("--lr abc", "invalid value 'abc' for --lr: expected a number\nfix: normscope train --help"),
    ("--stepz 5", "unexpected argument '--stepz'\nfix: did you mean '--steps'?"),
    ("--qqqqqq", "unexpected argument '--qqqqqq'\nfix: normscope train --help"),
    ("--on-nan pray", "invalid value 'pray' for --on-nan\nfix: use one of rollback, stop"),
    ("--batch 999999999999", "not enough memory: "),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[ascii(words) for words, _ in WRONG])
def test_a_wrong_setting_is_one_clear_error_and_leaves_nothing(
    in_folder: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert message in refused(["train", "milk.txt", *SMALL, "2", "--out", "r", *words.split()], capsys)
    assert os.listdir(in_folder) == ["milk.txt"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.txt", None, "there is no file or folder gone.txt"),
        ("milk.tx", None, "did you mean 'milk.txt'?"),
        ("empty.txt", b"", "the sources have no text"),
        ("tiny.txt", b"hello", "at least 200 are needed"),
        ("binary.txt", bytes(range(256)) * 9, "is not text"),
        ("short.txt", b"a few words. " * 20, None),
    ],
)
def test_a_wrong_text_is_one_clear_error_and_leaves_nothing(
    in_folder: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, message: str | None
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    if message is None:
        assert entered(["train", name, *SMALL, "1"], capsys)[0] == 0
    else:
        errors = refused(["train", name, *SMALL, "1"], capsys)
        assert message in errors
        assert "fix: " in errors
        assert not Path("runs").exists() or os.listdir("runs") == []


@pytest.mark.parametrize("words", ["--val-fraction 0.2", "--split tail"])
def test_stories_are_not_split(in_folder: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert f"so {words} would have no effect" in refused(["train", *words.split()], capsys)


def test_a_place_that_cannot_be_written_is_named(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out in ("milk.txt", "milk.txt/below", "/proc/nothing"):
        errors = refused(["train", "milk.txt", *SMALL, "1", "--out", out], capsys)
        assert f"cannot create the folder {out}" in errors
    assert "milk.txt: a file has this name\nfix: " in refused(["train", "milk.txt", "--out", "milk.txt"], capsys)
    assert "is not empty" in refused(["train", "milk.txt", *SMALL, "1", "--out", "."], capsys)


def test_a_run_is_not_overwritten(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_text(trained_run.parent)
    errors = refused(["train", str(text), *SMALL, "1", "--out", str(trained_run)], capsys)
    assert "already contains a run" in errors
    assert f"fix: normscope resume {trained_run}" in errors


def test_too_little_memory_is_an_error_and_no_traceback(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "milk.txt", *SMALL, "1", "--out", "r", "--width", str(10**13)]  # more than there are addresses
    assert "not enough memory" in refused(words, capsys)


def test_a_run_that_diverges_leaves_a_report(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = refused(
        ["train", "milk.txt", *SMALL, "9", "--out", "r", "--matrix-lr", "1e38", "--grad-clip", "0"], capsys
    )
    assert "normscope replay r/nan/" in errors
    header = Path("r/report.html").read_text().partition("</header>")[0]
    assert "; stopped: " in header
    assert "not finite" in header or "nan" in header or "inf" in header
    assert "saved checkpoints are intact" in errors


def test_a_run_that_diverges_at_once_has_nothing_to_sample(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--save-every", "0", "--matrix-lr", "1e38", "--grad-clip", "0", "--out", "r"]
    assert "; no checkpoint yet" in refused(["train", "milk.txt", *SMALL, "9", *words], capsys)
    errors = refused(["sample", "r"], capsys)
    assert "it hit a NaN or Inf first\nfix: start a new run with a lower --matrix-lr" in errors


def test_trackers_are_asked_for_before_a_run_is_made(
    in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "wandb is not installed" in refused(["train", "milk.txt", "--wandb", "offline"], capsys)
    assert "tensorboard is not installed" in refused(["train", "milk.txt", "--tensorboard"], capsys)
    assert os.listdir(in_folder) == ["milk.txt"]


def test_help_reads_well(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = typed("train --help", capsys)
    assert code == 0
    assert "None" not in out
    assert "normscope train books/ notes/*.md --depth 6" in out
    for group in ("data", "architecture", "optimization", "intervals", "hardware", "logging"):
        assert f"{group} options" in out
    lines = [line for line in out.splitlines() if "--" in line]
    assert all("(default: )" not in line for line in lines)


def test_two_interruptions_end_at_once_and_what_was_saved_is_whole(in_folder: Path) -> None:
    words = ["train", "milk.txt", "--out", "r", *SMALL, "100000"]
    # On a terminal without the drawing characters, too.
    process = start_command(words, in_folder / "output", in_folder / "errors", encoding="ascii")
    metrics = in_folder / "r" / "metrics.jsonl"
    while not (metrics.exists() and '"step": 9,' in metrics.read_text()):
        time.sleep(0.02)
        assert process.is_alive()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130
    assert "Traceback" not in (in_folder / "errors").read_text()
    run = Run.open(in_folder / "r")
    last = run.checkpoints.last()
    assert last is not None
    assert json.loads((run.checkpoints.path(last) / "state.json").read_text())["step"] == last
    run.load_model("last")


@pytest.mark.skipif(sys.platform != "linux", reason="names are any bytes on Linux only")
def test_names_that_are_not_utf_8_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    text, odd = write_text(tmp_path), write_text(tmp_path / "texts", "caf\udce9.txt")
    for source, out in ((odd, "made"), (odd.parent, "made"), (text, "caf\udce9")):
        errors = refused(["train", str(source), "--out", out, *SMALL, "2"], capsys)
        assert "the name is not UTF-8\nfix: rename the file or its folder" in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["milk.txt", "texts"]


@pytest.mark.parametrize("command", ["train milk.txt", "resume r"])
def test_no_process_is_too_few(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert "--nproc 0 must be a positive integer" in refused([*command.split(), "--nproc", "0"], capsys)


@pytest.mark.parametrize("command", ["train milk.txt", "resume r"])
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--nproc 2", "--nproc 2, but torchrun is set to 4 processes\nfix: omit --nproc"),
        ("--nproc 4 --max-restarts 3", "--max-restarts 3, but torchrun is set to 0 restarts\nfix: omit --max-restarts"),
    ],
)
@pytest.mark.parametrize("run_id", ["none", None])
def test_processes_that_torchrun_did_not_start_are_refused(
    in_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    words: str,
    problem: str,
    run_id: str | None,
) -> None:
    torchrun = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "TORCHELASTIC_MAX_RESTARTS": "0"}
    for name, value in {**torchrun, **({"TORCHELASTIC_RUN_ID": run_id} if run_id else {})}.items():
        monkeypatch.setenv(name, value)
    code, _, errors = entered([*command.split(), *words.split()], capsys)
    assert (code, errors.startswith(f"[rank 0] error: {problem}")) == (2, True), errors


@pytest.mark.parametrize("words", ["--nproc 4", "--nproc 4 --max-restarts 2", ""])
def test_the_ranks_of_a_launch_start_no_others(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    torchrun = {"RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_RUN_ID": "x"}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    assert not must_launch(read_arguments(Train, "train", words.split()).launch)
