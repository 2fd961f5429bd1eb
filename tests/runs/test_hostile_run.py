"""Untrusted run folders: nothing outside the folder is touched, and every problem is one clear error."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from normscope.errors import CheckpointError, FileError, NormscopeError
from normscope.generate.text import generate_text
from normscope.runs.checksummed_folder import MANIFEST_NAME
from normscope.runs.list_runs import list_runs
from normscope.runs.read_source import load
from normscope.runs.report.page import write_report
from normscope.runs.run import Run
from normscope.storage.lock import is_locked, locked
from normscope.training.loop import train_run
from normscope.training.nan_guard import replay, save_nan_bundle
from normscope.training.train import open_run
from tests.runs.tampering import files_of, fingerprint, flip_bit, rewrite, rewrite_config, rewrite_manifest
from tests.training.small_run import new_run

STEPS = 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, only copied."""
    run = new_run(tmp_path_factory.mktemp("run"), steps=STEPS, save_every=2, eval_every=2, xray_every=STEPS)
    train_run(run)
    write_report(run.folder)
    model, _ = run.load_model()
    tokens = torch.zeros(2, 4, dtype=torch.long)
    save_nan_bundle(run.safe_folder / "nan" / "00000001-batch-0", model, tokens, tokens, {"error": "the loss is nan"})
    return run.folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def sample(folder: Path) -> str:
    model, tokenizer = load(folder)
    (text,) = generate_text(model, tokenizer, "1", max_new_tokens=8, seed=3)
    return text.text


def resume(folder: Path) -> str:
    run = Run.open(folder)
    reason = train_run(run, from_step=2)
    return reason + sample(folder)


def report(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


def replay_fault(folder: Path) -> str:
    return str(replay(folder / "nan" / "00000001-batch-0"))


COMMANDS: dict[str, Callable[[Path], str]] = {
    "sample": sample,
    "resume": resume,
    "report": report,
    "replay": replay_fault,
}


def outcome(command: str, folder: Path) -> str:
    """The result of a command, or its NormscopeError; any other exception is raised."""
    try:
        return COMMANDS[command](folder)
    except NormscopeError as error:
        text = f"error: {error}"
    assert "\nfix: " in text, text
    return text


LINKS = {
    ".lock": "file",
    "report.html": "file",
    "metrics.jsonl": "file",
    "config.json": "file",
    "tokenizer.json": "file",
    "manifest.json": "file",
    "checkpoints": "folder",
    "checkpoints/best.json": "file",
    "checkpoints/00000002": "folder",
    "checkpoints/00000004": "folder",
    "checkpoints/00000004/manifest.json": "file",
    "checkpoints/00000004/state.json": "file",
    "checkpoints/00000004/model.safetensors": "file",
    "checkpoints/00000007": "folder",
    "xray": "folder",
    "xray/step-000004.json": "file",
    "data": "folder",
    "data/train.bin": "file",
    "data/corpus.json": "file",
    "nan/00000001-batch-0": "folder",
}


NOT_READ = (".lock", "checkpoints/00000004/state.json", "nan/00000001-batch-0")
"""Names that no command here reads, and faults, whose folder the user passes."""


@pytest.mark.parametrize("name", LINKS)
def test_symbolic_links_are_not_followed(folder: Path, tmp_path: Path, name: str) -> None:
    """The victim is what the link's place held, so that a command that follows it would find all it looks for."""
    victim, path = tmp_path / "victim", folder / name
    if path.exists():
        path.rename(victim)
    elif LINKS[name] == "folder":
        shutil.copytree(folder / "checkpoints" / "00000004", victim)
    else:
        victim.write_text("precious")
    path.symlink_to(victim, target_is_directory=LINKS[name] == "folder")
    outside = tmp_path / "outside"
    outside.mkdir()
    victim.rename(outside / "victim")
    path.unlink()
    path.symlink_to(outside / "victim")
    before = fingerprint(outside)
    found = {command: outcome(command, folder) for command in COMMANDS}
    assert fingerprint(outside) == before
    refusals = [text for text in found.values() if "is a symbolic link" in text]
    assert refusals or name in NOT_READ


def test_a_run_may_be_reached_through_links(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(tmp_path)
    (tmp_path / "run-link").symlink_to(folder)
    for path in (tmp_path / "runs" / "run", tmp_path / "run-link"):
        assert not sample(path).startswith("error")
        assert resume(path).startswith("done")


def test_a_new_run_is_not_started_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "data").symlink_to(tmp_path / "victim")
    with pytest.raises(FileError, match="data is a symbolic link"):
        new_run(tmp_path)
    assert os.listdir(tmp_path / "victim") == []


def test_hard_linked_metrics_are_not_written_to(folder: Path, tmp_path: Path) -> None:
    os.link(folder / "metrics.jsonl", tmp_path / "backup.jsonl")
    with pytest.raises(FileError, match="it is a hard link"):
        train_run(Run.open(folder), from_step=2)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "manifest.json", "tokenizer.json", "checkpoints"])
def test_a_pipe_or_folder_in_place_of_a_file_is_an_error(folder: Path, name: str) -> None:
    for make in (os.mkfifo, os.mkdir):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path)
        if not (name == "checkpoints" and path.is_dir()):
            found = [outcome(command, folder) for command in ("sample", "resume", "report")]
            assert any(text.startswith("error: ") for text in found)


@pytest.mark.parametrize("name", ["../../victim", "/etc/passwd", "..", "a\\b.json", "x.safetensors/../../y.json", ""])
def test_manifest_cannot_name_files_outside(folder: Path, name: str) -> None:
    checkpoint = folder / "checkpoints" / "00000004"
    rewrite(
        checkpoint / MANIFEST_NAME, lambda manifest: manifest["files"].update({name: manifest["files"]["state.json"]})
    )
    with pytest.raises(CheckpointError, match=r"manifest\.json is not valid: expected `str` matching regex .* `files`"):
        Run.open(folder).load_model("last")


@pytest.mark.parametrize(
    ("part", "setting", "value"),
    [
        ("model", "logit_cap", 3.0),
        ("model", "activation", "gelu"),
        ("model", "window", 3),
        ("model", "rotary_base", 5.0),
        ("train", "lr", 0.5),
    ],
)
def test_every_command_names_a_changed_setting(folder: Path, part: str, setting: str, value: Any) -> None:
    rewrite(folder / "config.json", lambda config: config[part].update({setting: value}))
    for command in ("sample", "resume", "report"):
        found = outcome(command, folder)
        assert f"config.json changed since this run started: {part}.{setting} was" in found


def test_a_setting_changed_before_the_first_checkpoint_is_an_error(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=2)
    rewrite(run.folder / "config.json", lambda config: config["train"].update(lr=0.9))
    with pytest.raises(CheckpointError, match=r"config\.json is damaged"):
        train_run(Run.open(run.folder))


def test_a_damaged_manifest_is_the_file_that_is_named(folder: Path) -> None:
    for path in (folder / MANIFEST_NAME, folder / "checkpoints" / "00000004" / MANIFEST_NAME):
        data = path.read_bytes()
        digit = next(number for number in range(100, len(data)) if data[number : number + 1].isdigit())
        path.write_bytes(data[:digit] + b"9"[: data[digit] != 57] + b"8"[: data[digit] == 57] + data[digit + 1 :])
        with pytest.raises(CheckpointError, match=rf"{path} is (damaged|not valid)"):
            load(folder, checkpoint="last")
        path.write_bytes(data)


@pytest.mark.parametrize("damage", ["", '{"step": 4}', "{}", "[]", '{"step": 2, "loss": 1.0, "checksum": "0"}'])
def test_a_damaged_best_json_is_not_ignored(folder: Path, damage: str) -> None:
    (folder / "checkpoints" / "best.json").write_text(damage)
    assert "best.json is" in outcome("sample", folder)


def test_a_missing_or_dangling_best_json_is_not_ignored(folder: Path) -> None:
    path = folder / "checkpoints" / "best.json"
    rewrite(path, lambda best: best.update(step=3))
    assert "best.json names step 3, which has no checkpoint\nfix: --checkpoint last" in outcome("sample", folder)
    path.unlink()
    assert "best.json is missing although the run was validated\nfix: --checkpoint last" in outcome("sample", folder)


@pytest.mark.parametrize("damage", ["emptied", "edited", "a line less", "gone"])
def test_modified_metrics_are_an_error(folder: Path, damage: str) -> None:
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if damage == "gone":
        path.unlink()
    else:
        left = {"emptied": [], "edited": [lines[0].replace(b"0", b"1"), *lines[1:]], "a line less": lines[1:]}
        path.write_bytes(b"".join(left[damage]))
    assert "metrics.jsonl" in outcome("report", folder)
    assert "metrics.jsonl is damaged: its first" in outcome("resume", folder)
    runs, errors = list_runs(folder)
    assert not runs
    assert "metrics.jsonl" in str(errors[folder])
    assert sample(folder)  # which needs no metrics


@pytest.mark.parametrize("damaged", ["metrics.jsonl", "checkpoints/00000004/model.safetensors", "data/train.bin"])
def test_a_refused_extension_changes_nothing(folder: Path, damaged: str) -> None:
    flip_bit(folder / damaged, 800)
    run, before = open_run(folder), fingerprint(folder)
    with pytest.raises(NormscopeError):
        run.resume(steps=STEPS + 2, quiet=True)
    assert fingerprint(folder) == before
    run.reload_extension()
    assert (run.extension, run.config.train.steps) == (None, STEPS)


def test_a_damaged_end_of_the_metrics_is_written_again(folder: Path) -> None:
    """What came after the last checkpoint needs no other copy: it is done again."""
    path = folder / "metrics.jsonl"
    flip_bit(path, 8 * path.stat().st_size - 200)
    assert "is damaged" in outcome("report", folder)
    assert not Run.open(folder).is_done()
    assert train_run(Run.open(folder)) == "done"
    assert outcome("report", folder).startswith("<!DOCTYPE html>")


def test_sparse_metrics_of_terabytes_are_not_read(folder: Path) -> None:
    os.truncate(folder / "metrics.jsonl", 2**42)
    assert "metrics.jsonl: it has a line of more than 16,777,216 bytes" in outcome("resume", folder)
    assert (folder / "metrics.jsonl").stat().st_size == 2**42


def _retype(path: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensors = load_file(path)
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, path)


WEIGHT, MEMORY = "blocks.0.attention.q.weight", "blocks.0.attention.q.weight:momentum"


@pytest.mark.parametrize(
    ("group", "name", "change", "words"),
    [
        (
            "model",
            WEIGHT,
            lambda t: t.to(torch.int32),
            r"q\.weight has shape \(16, 16\) \(I32\), expected \(16, 16\) \(F32\)",
        ),
        ("model", WEIGHT, lambda t: t.double(), r"has shape .* \(F64\)"),
        ("model", WEIGHT, lambda t: t[:8], r"has shape \(8, 16\) \(F32\), expected"),
        ("model", WEIGHT, lambda t: t * torch.nan, "has non-finite values in .*q.weight"),
        ("model", "more", None, "more is unexpected"),
        ("optimizer", MEMORY, lambda t: t.to(torch.int32), r"has shape .* \(I32\)"),
        ("optimizer", MEMORY, lambda t: t[0], r"has shape \(16,\) \(F32\), expected"),
        ("rng", "torch", lambda t: t[:100], r"has shape .* \(U8\)"),
        ("rng", "torch", lambda t: t * 0 + 255, "does not match the model of this run"),
    ],
)
def test_mismatched_tensors_are_named_even_with_valid_checksums(
    folder: Path, group: str, name: str, change: Callable[[torch.Tensor], torch.Tensor] | None, words: str
) -> None:
    checkpoint = folder / "checkpoints" / "00000004"
    path = checkpoint / f"{group}.safetensors"
    if change is None:
        save_file({**load_file(path), name: torch.zeros(1)}, path)
    else:
        _retype(path, name, change)
    rewrite_manifest(checkpoint)
    uses: list[Callable[[], object]] = [lambda: train_run(Run.open(folder), from_step=STEPS)]
    uses += [lambda: load(folder, checkpoint="last")] if group == "model" else []
    for use in uses:
        with pytest.raises(CheckpointError, match=words):
            use()


def test_a_missing_or_renamed_tensor_is_named(folder: Path) -> None:
    checkpoint = folder / "checkpoints" / "00000004"
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    tensors["renamed"] = tensors.pop(WEIGHT)
    save_file(tensors, path)
    rewrite_manifest(checkpoint)
    with pytest.raises(CheckpointError, match=r"blocks\.0\.attention\.q\.weight is missing, renamed is unexpected"):
        load(folder, checkpoint="last")


@pytest.mark.parametrize(
    ("part", "setting", "value"),
    [
        ("model", "depth", 10**9),
        ("model", "depth", 2**63),
        ("model", "width", 16 * 10**12),
        ("model", "vocab_size", 10**12),
        ("model", "context", 10**13),
        ("model", "heads", 10**9),
        ("model", "hidden", 10**15),
        ("train", "steps", -1),
        ("train", "batch", 2**62),
    ],
)
def test_impossible_sizes_are_an_error_before_anything_is_allocated(
    folder: Path, part: str, setting: str, value: int
) -> None:
    rewrite_config(folder, lambda config: config[part].update({setting: value}))
    found = {command: outcome(command, folder) for command in ("sample", "resume")}
    assert found["resume"].startswith("error: ")
    assert found["sample"].startswith("error: ") or setting == "batch"


@pytest.mark.parametrize(
    "change",
    [
        {"step": 2**52},
        {"step": -1},
        {"next_batch": 10**18},
        {"skipped_batches": [2**60]},
        {"skipped_batches": "all"},
        {"metrics_bytes": 10**15},
        {"seconds": -1.0},
        {"best": "low"},
        {"config": 5},
        {"environment": {"threads": 5}},
        {"more": 1},
    ],
)
def test_impossible_checkpoint_states_are_errors(folder: Path, change: dict[str, Any]) -> None:
    checkpoint = folder / "checkpoints" / "00000002"
    rewrite(checkpoint / "state.json", lambda state: state.update(change))
    rewrite_manifest(checkpoint)
    assert outcome("resume", folder).startswith("error: ")


def test_a_checkpoint_of_another_run_is_an_error(folder: Path) -> None:
    """One whose config differs only in what a model is sampled without."""
    shutil.copytree(folder, folder.parent / "other")
    rewrite_config(folder.parent / "other", lambda config: config["train"].update(lr=0.5))
    shutil.rmtree(folder / "checkpoints" / "00000004")
    shutil.copytree(folder.parent / "other" / "checkpoints" / "00000004", folder / "checkpoints" / "00000004")
    with pytest.raises(CheckpointError, match="00000004 belongs to another run"):
        load(folder, checkpoint="last")


def test_the_lock_holds_after_its_file_is_removed(folder: Path) -> None:
    with locked(folder):
        (folder / ".lock").unlink(missing_ok=True)
        assert is_locked(folder)
        with pytest.raises(FileError, match="another process is using"), locked(folder):
            pass
    assert not is_locked(folder)
    with locked(folder):
        pass


def test_file_lock_without_folder_locks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    flock = fcntl.flock

    def no_folders(file: Any, how: int) -> None:
        number = file if isinstance(file, int) else file.fileno()
        if os.path.samestat(os.fstat(number), os.stat(folder)) and how & fcntl.LOCK_EX:
            raise OSError(9, "Bad file descriptor")  # as on NFS
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", no_folders)
    with locked(folder):
        assert is_locked(folder)
        with pytest.raises(FileError, match="another process is using"), locked(folder):
            pass
    assert not is_locked(folder)


def test_without_locks_a_run_still_trains(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", refuse)
    with locked(folder), locked(folder):
        assert not is_locked(folder)


def flips(folder: Path, per_file: int) -> list[tuple[str, int]]:
    """Bits to flip, spread over each file of a run."""
    found = []
    for path in files_of(folder):
        bits = 8 * path.stat().st_size
        # The last bit is in the exponent of the last weight, for a file of weights.
        found += [(str(path.relative_to(folder)), bits * i // per_file - 2) for i in range(1, per_file + 1)]
    return found


def check_flips(trained: Path, folder: Path, per_file: int, command: str) -> None:
    """Each flipped bit is detected, or does not change the command's result."""
    shutil.copytree(trained, folder)
    wanted = outcome(command, folder)
    assert not wanted.startswith("error: ")
    for name, bit in flips(trained, per_file):
        if command == "resume":  # the others change only report.html
            shutil.rmtree(folder)
            shutil.copytree(trained, folder)
        flip_bit(folder / name, bit)
        found = outcome(command, folder)
        (folder / name).write_bytes((trained / name).read_bytes())
        said = f"{command} with bit {bit} of {name} flipped gave {found[:80]}"
        assert found == wanted or found.startswith("error: "), said


@pytest.mark.parametrize("command", ["sample", "report", "replay"])
def test_a_flipped_bit_is_detected_or_harmless(trained: Path, tmp_path: Path, command: str) -> None:
    check_flips(trained, tmp_path / "run", 1, command)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("command", "per_file"), [("sample", 60), ("report", 60), ("replay", 60), ("resume", 5)])
def test_many_flipped_bits_are_detected_or_harmless(trained: Path, tmp_path: Path, command: str, per_file: int) -> None:
    check_flips(trained, tmp_path / "run", per_file, command)


def test_metrics_of_trained_run_are_json_lines(trained: Path) -> None:
    lines = (trained / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines][-1] == "finished"
