"""Log lines: their content, how often they appear, and no escape sequences."""

import io
import itertools
import math
import re

import msgspec
import pytest

from normscope.runs.events import CheckpointEvent, FinishedEvent, NoticeEvent, RunEvent, SampleEvent
from normscope.training.observers.live import LiveDisplay
from normscope.training.observers.log_lines import LogLines, choose_display, next_commands
from tests.training.observers.simulated import FLOOR, Clock, signal, simulated_run, started, stepped, validated


def said(*events: RunEvent) -> list[str]:
    stream = io.StringIO()
    lines = LogLines(stream, clock=Clock())
    for event in events:
        lines.on_event(event)
    lines.close()
    return stream.getvalue().splitlines()


def watch(steps: int, seconds: float) -> list[int]:
    """The steps that had a line, in a run whose steps take so long."""
    stream, clock = io.StringIO(), Clock()
    lines = LogLines(stream, clock=clock)
    lines.on_event(started(steps=steps))
    for step in range(1, steps + 1):
        clock.now += seconds
        lines.on_event(stepped(step, steps=steps, seconds=seconds))
    return [int(number) for number in re.findall(r"^step +(\d+)/", stream.getvalue(), re.MULTILINE)]


def test_the_start_describes_the_run() -> None:
    assert said(started()) == [
        "training GPT of 4 blocks, width 128, 835 k parameters",
        "  device      cpu",
        "  precision   float32",
        "  steps       300 of 2.05 k tokens each",
        "  vocabulary  65 tokens, 1.50 bytes each",
        "  floor       0.800 bits per byte (entropy of the text)",
        "  folder      runs/tale",
    ]
    assert said(started(step=120))[0].startswith("resuming from step 120: GPT of 4 blocks")
    assert not any("floor" in line for line in said(started(floor=None)))


def test_a_step() -> None:
    (line,) = said(started(), stepped(1, loss=4.1744))[7:]
    lrs = "matrix_lr 2.0e-02  lr 3.0e-03"
    assert line == f"step   1/300  loss 4.1744  grad_norm   1.827  {lrs}  epoch 0.01  20.5 k tokens/s"
    assert "matrix_lr 1.0e-02  lr 1.5e-03" in said(started(), stepped(226))[-1]  # where the schedule is at a half


def test_a_validation_shows_the_distance_to_the_floor() -> None:
    loss = 1.5 * math.log(2) * 1.5
    assert said(started(), validated(50, loss))[-1] == (
        "  validation at step 50: loss 1.5596, 1.500 bits per byte (0.700 above the floor of 0.800), best so far"
    )
    assert said(started(floor=None), validated(50, loss, best=False))[-1] == (
        "  validation at step 50: loss 1.5596, 1.500 bits per byte"
    )
    rising = said(started(floor=None), validated(50, loss), validated(60, 2 * loss, best=False))
    assert rising[-1].endswith("loss 3.1192, 3.000 bits per byte; best 1.5596 at step 50")


def test_samples_checkpoints_and_notices() -> None:
    assert said(SampleEvent(9, "Once", " upon\n a time")) == ['  sample at step 9: "Once upon a time"']
    assert said(CheckpointEvent(9, "somewhere")) == ["  saved step 9"]
    assert said(NoticeEvent(9, "one\ntwo")) == ["  note at step 9: one", "  note at step 9: two"]
    assert said(signal(9)) == []


def test_the_end_suggests_next_commands() -> None:
    end = said(started(), validated(250, 1.2), validated(300, 1.3, best=False), FinishedEvent(300, "done", 75.0))[-4:]
    assert end == [
        "done: step 300 of 300 in 1 min 15 s",
        "  best validation at step 250: loss 1.2000, 1.154 bits per byte (0.354 above the floor of 0.800)",
        "  sample   normscope sample runs/tale",
        "  report   runs/tale/report.html",
    ]
    start = msgspec.structs.replace(started(), conversations=True)
    assert said(start, FinishedEvent(300, "done", 75.0))[-2] == "  chat     normscope chat runs/tale"
    stopped = said(started(), FinishedEvent(120, "stopped", 75.0))[7:]
    assert stopped[0] == "stopped, everything saved: step 120 of 300 in 1 min 15 s"
    assert stopped[1] == "  resume   normscope resume runs/tale"


@pytest.mark.parametrize(("steps", "seconds"), [(1, 0.1), (2, 0.1), (500, 0.01), (500, 0.3), (2000, 1.0)])
def test_first_and_last_step_and_at_most_one_a_second(steps: int, seconds: float) -> None:
    shown = watch(steps, seconds)
    assert shown[0] == 1
    assert shown[-1] == steps
    assert len(shown) == len(set(shown))
    between = [later - earlier for earlier, later in itertools.pairwise(shown[:-1])]  # the last is extra
    assert all(gap * seconds >= 1 - 1e-6 for gap in between)


def test_a_long_run_logs_less_often_but_at_least_once_a_minute() -> None:
    shown = watch(20_000, 1.0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(shown)]
    assert gaps == sorted(gaps[:-1]) + gaps[-1:]
    assert gaps[0] == 1
    assert max(gaps) == 60


def test_a_resumed_run_logs_its_first_step() -> None:
    lines = said(started(), stepped(1), stepped(2), started(step=100), stepped(101))
    assert [line.split("  loss")[0] for line in lines if line.startswith("step")] == ["step   1/300", "step 101/300"]


def test_no_escape_sequences() -> None:
    nasty = "\x1b[2J\x07\x9b\u202e\r\x00"
    text = said(*simulated_run(100), SampleEvent(1, nasty, nasty), NoticeEvent(1, nasty), FinishedEvent(1, nasty, 1.0))
    assert all(line.isprintable() for line in text)
    assert max(map(len, text)) <= 200


def test_missing_numbers() -> None:
    lines = said(started(), stepped(1, loss=math.nan), validated(1, math.nan, best=False))
    assert "loss nan" in lines[-2]
    assert "loss nan" in lines[-1]


class Terminal(io.TextIOWrapper):
    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding)

    def isatty(self) -> bool:
        return True


def test_the_display_depends_on_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(choose_display(io.StringIO()), LogLines)
    assert isinstance(choose_display(Terminal()), LiveDisplay)
    assert isinstance(choose_display(Terminal("latin-1")), LogLines)  # which has no characters to draw with
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose_display(Terminal()), LogLines)


def test_the_floor_of_the_simulated_run_is_below_its_end() -> None:
    ends = [line for line in said(*simulated_run()) if "best validation" in line]
    assert len(ends) == 1
    assert f"above the floor of {FLOOR:.3f}" in ends[0]


@pytest.mark.parametrize(
    ("called", "found", "name"),
    [
        (".venv/bin/normscope", None, ".venv/bin/normscope"),  # as make calls it
        ("my tools/normscope", None, "'my tools/normscope'"),
        (".venv/bin/normscope", ".venv/bin/normscope", "normscope"),
        ("train_it.py", None, "normscope"),
    ],
)
def test_the_suggested_command_can_be_found_by_the_shell(
    called: str, found: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [called, "train"])
    monkeypatch.setattr("shutil.which", lambda _: found)
    assert dict(next_commands(started(), FinishedEvent(9, "stopped", 1.0))) == {
        "resume": f"{name} resume runs/tale",
        "sample": f"{name} sample runs/tale",
        "report": "runs/tale/report.html",
    }
