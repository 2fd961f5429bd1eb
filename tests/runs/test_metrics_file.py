"""metrics.jsonl: events round-trip, after kills and with non-finite numbers."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.errors import ConfigError, FileError
from normscope.runs.events import NoticeEvent, SampleEvent, SignalEvent, StepEvent
from normscope.runs.metrics_file import MetricsFile, _with_checksum, event_to_json, read_metrics
from tests.pairs import chiefly
from tests.runs.tampering import flip_bit
from tests.training.observers.simulated import simulated_run, stepped

seeded = settings(derandomize=True, deadline=None)


def write(path: Path, count: int, first: int = 1) -> None:
    file = MetricsFile(path)
    for step in range(first, first + count):
        file.on_event(stepped(step))
    file.close()


def steps(path: Path) -> list[int]:
    return [event["step"] for event in read_metrics(path)]


def test_the_events_of_a_run_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    told = list(simulated_run(60))
    for event in told:
        file.on_event(event)
    file.close()
    found = read_metrics(path)
    assert [(event["kind"], event["step"]) for event in found] == [(event.kind, event.step) for event in told]
    for line, event in zip(found, told, strict=True):
        assert {"kind": event.kind, **msgspec.structs.asdict(event)} == line
    assert all(list(line)[:2] == ["kind", "step"] for line in found)


def test_each_line_is_written_immediately(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.on_event(NoticeEvent(1, "hello"))
    assert steps(file.path) == [1]
    file.close()


@seeded
@given(st.text(st.characters(exclude_categories=()), max_size=40))  # including lone surrogates and control characters
def test_any_text_takes_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    file = MetricsFile(path)
    file.on_event(SampleEvent(1, text, text))
    file.close()
    assert path.read_bytes().count(b"\n") == 1
    assert read_metrics(path)[0]["text"] == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_numbers_become_null(value: float) -> None:
    step = StepEvent(1, value, value, 1.0, 0.0, 0.1, 10.0, 0.02, 0.01)
    line = event_to_json(step)
    assert line["loss"] is line["grad_norm"] is None
    inner = event_to_json(SignalEvent(1, [{"name": "blocks.0", "rms": value, "grad_rms": 1.0}]))
    assert inner["layers"] == [{"name": "blocks.0", "rms": None, "grad_rms": 1.0}]
    json.dumps([line, inner], allow_nan=False)


def test_truncate_drops_later_events(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    for step in range(1, 6):
        file.on_event(stepped(step))
    file.sync()
    size = path.stat().st_size
    for step in range(6, 9):
        file.on_event(stepped(step))
    file.truncate(size)
    file.on_event(NoticeEvent(5, "again"))
    file.close()
    assert steps(path) == [1, 2, 3, 4, 5, 5]


@pytest.mark.parametrize(("keep", "left"), [(0, []), (10**9, [1, 2, 3]), (None, [1, 2, 3])])
def test_truncate_at_the_start_and_at_the_end(tmp_path: Path, keep: int | None, left: list[int]) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 3)
    file = MetricsFile(path)
    file.truncate(keep)
    file.close()
    assert steps(path) == left


@seeded
@given(lost=st.integers(0, 400))
def test_an_incomplete_last_line_is_skipped_and_overwritten(
    tmp_path_factory: pytest.TempPathFactory, lost: int
) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    write(path, 5)
    whole = path.read_bytes()
    lost = min(lost, len(whole))
    torn = whole[: len(whole) - lost]
    path.write_bytes(torn)
    there = list(range(1, 1 + torn.count(b"\n")))
    assert steps(path) == there
    write(path, 2, first=90)
    assert steps(path) == [*there, 90, 91]


def test_a_killed_process_leaves_complete_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    code = f"""
import os, signal
from normscope.runs.events import NoticeEvent
from normscope.runs.metrics_file import MetricsFile
file = MetricsFile({str(path)!r})
for step in range(3):
    file.on_event(NoticeEvent(step, "still here"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert steps(path) == [0, 1, 2]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"kind": "step", "st}', "is not JSON"),
        (b"}", "is not JSON"),
        (b"[1}", "is not JSON"),
        (b'{"step": 1}', "is not an event"),
        (b'{"kind": "step"}', "is not an event"),
        (b'{"kind": "step", "step": -1}', "is not an event"),
        (b'{"kind": "step", "step": 1, "loss": "low"}', "is not valid: expected `float | null`, got `str` at `loss`"),
        (b'{"kind": "signal", "step": 1, "layers": 5}', "is not valid: expected `array | null`, got `int`"),
        (b'{"kind": "signal", "step": 1, "layers": [5]}', "is not valid: expected `object`, got `int` at `layers[0]`"),
        (b'{"kind": "started", "step": 0, "info": []}', "is not valid: expected `object | null`, got `array`"),
        (b'{"kind": "notice", "step": 0, "text": 1e999}', "has a number that is too large: 1e999"),
        (b"\xff}", "is not UTF-8"),
    ],
)
def test_an_invalid_line_is_an_error_with_its_number(tmp_path: Path, line: bytes, words: str) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    for own, wanted in ((line + b"\n", "is damaged: its checksum is missing"), (_with_checksum(line), words)):
        path.write_bytes(b"".join([lines[0], own, lines[2]]))
        with pytest.raises(FileError, match=re.escape(f"line 2 of {path} {wanted}")):
            read_metrics(path)


@pytest.mark.parametrize("apart", chiefly([7], [1]))  # 7: a bit of every byte, each of the eight in turn
def test_every_flipped_bit_of_a_line_is_detected(tmp_path: Path, apart: int) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 1)
    line = path.read_bytes()
    for bit in range(0, 8 * len(line), apart):
        flip_bit(path, bit)
        with pytest.raises(FileError, match=r"metrics.jsonl is damaged"):
            read_metrics(path)
        path.write_bytes(line)


def test_a_missing_file_or_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"metrics.jsonl does not exist\nfix: "):
        read_metrics(tmp_path / "metrics.jsonl")
    with pytest.raises(FileError, match=r"the folder .*nowhere does not exist\nfix: "):
        MetricsFile(tmp_path / "nowhere" / "metrics.jsonl")
    with pytest.raises(FileError, match=r"cannot write .*: it is not a regular file"):
        MetricsFile(tmp_path)


@pytest.mark.parametrize("keep", [-1, 1.5, True])
def test_an_invalid_keep_bytes_is_an_error(tmp_path: Path, keep: Any) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    with pytest.raises(ConfigError, match="keep_bytes="):
        file.truncate(keep)
    file.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no file that is always full")
def test_full_disk_raises() -> None:
    file = MetricsFile.__new__(MetricsFile)
    file.path = Path("/dev/full")
    file._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115 - closed below
    with pytest.raises(FileError, match="cannot write /dev/full: the disk is full"):
        file.on_event(NoticeEvent(1, "too much"))
    file.close()
