"""Weights & Biases, offline: its folder is written, and a resumed run keeps its id."""

import importlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from normscope.errors import ConfigError
from normscope.training.observers.trackers import WeightsAndBiases
from tests.training.forked import finish, start_forked
from tests.training.observers.simulated import simulated_run, started, stepped


def logs(path: Path) -> list[dict[str, str]]:
    """What each log of an offline run's file holds."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    found = []
    for data in log_records(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            found.append({"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item})
    return found


def log_records(content: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, which begins with seven bytes of wandb's own.

    Blocks of 32 KiB hold chunks: a checksum, a length, a type (1 whole, 2 first, 3 middle, 4 last), and the data.
    """
    at, whole = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # no header fits, so the block is filled up
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def all_logs(path: Path, count: int) -> list[dict[str, str]]:
    """The logs, once so many are there: wandb's process closes the file a little after `finish` returns."""
    for _ in range(100):
        found = logs(path)
        if len(found) >= count:
            break
        time.sleep(0.1)
    return found


def log_twice(folder: str) -> None:
    """Log a run, and go on from its middle."""
    watcher = WeightsAndBiases(folder, name="tale", config={"depth": 4})
    for event in simulated_run(100):
        watcher.on_event(event)
    watcher.close()
    time.sleep(1)  # wandb names its folders by the second
    again = WeightsAndBiases(folder)
    again.on_event(started(step=50))
    again.on_event(stepped(51))
    again.close()


def test_an_offline_run(tmp_path: Path) -> None:
    """In another process: wandb looks through all modules of its own, and the tests have thousands."""
    finish(start_forked(log_twice, str(tmp_path)))
    name = (tmp_path / "wandb-id.txt").read_text(encoding="utf-8")
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert [path.name for path in files] == [f"run-{name}.wandb"] * 2
    assert [int(log["step"]) for log in all_logs(files[1], count=1)] == [51]
    found = all_logs(files[0], count=100 + 2 + 1)
    assert [int(log["step"]) for log in found if "training/loss" in log] == list(range(1, 101))
    assert [int(log["step"]) for log in found if "validation/loss" in log] == [50, 100]
    (page,) = tmp_path.glob("wandb/offline-run-*/files/media/html/*.html")
    text = page.read_text(encoding="utf-8")
    assert "little fox" in text
    assert "<script>alert" not in text


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    mode: Any = "sometimes"
    with pytest.raises(ConfigError, match="mode='sometimes': choose one of offline, online"):
        WeightsAndBiases(tmp_path, mode)


def test_an_error_of_wandb_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def refuse(**_: object) -> None:
        raise wandb.errors.UsageError("no API key")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ConfigError, match="wandb cannot start: no API key\nfix: wandb login, or mode='offline'"):
        WeightsAndBiases(tmp_path, "online")
