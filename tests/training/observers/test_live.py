"""The live display: fits any terminal, is drawn when due, and ends with a summary."""

import io
import math
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from normscope.runs.events import FinishedEvent, NoticeEvent, SampleEvent, StartedEvent, StepEvent, ThreadsEvent
from normscope.training.observers.live import LiveDisplay, panel
from normscope.training.observers.progress import RunProgress
from tests.training.observers.simulated import Clock, simulated_run, started, stepped, validated


def terminal(width: int = 80, height: int = 40, *, colour: bool = True) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        color_system="truecolor" if colour else None,
        no_color=not colour,
        legacy_windows=False,
        _environ={},
    )


def output(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def progress_after(steps: int, *, end: bool = False) -> RunProgress:
    clock = Clock()
    progress = RunProgress(clock)
    for event in simulated_run(300):
        if event.step > steps or (isinstance(event, FinishedEvent) and not end):
            break
        if isinstance(event, StepEvent):
            clock.now += event.seconds
        progress.on_event(event)
    return progress


def drawn(progress: RunProgress, width: int = 80, height: int = 40) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, _environ={})
    console.print(panel(progress, width, height))
    return output(console).splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 140])
@pytest.mark.parametrize("steps", [-1, 0, 1, 20, 130, 300])
def test_every_line_has_the_width_of_the_terminal(width: int, steps: int) -> None:
    lines = drawn(progress_after(steps, end=steps == 300), width)
    assert {cell_len(line) for line in lines} == {width}
    assert lines[0].startswith("╭")
    assert lines[-1].startswith("╰")


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_main_numbers_are_shown_in_any_width(width: int) -> None:
    text = "\n".join(drawn(progress_after(130), width))
    for words in (
        "GPT of 4 blocks, width 128, 835 k parameters",
        "130 of 300 ━",
        "43 %",
        "s left",
        "1.4994",  # the validation loss
        "best so far",
        "floor 0.800",
        "tokens/s",
        "matrix_lr 2.0e-02, lr 3.0e-03, grad norm 0.402",
        "B now, ",
        "sample, step 100",
        "little fox",
        "<script>",
        "runs/tale",
        "█",
    ):
        assert words in text


@pytest.mark.parametrize("width", [80, 140])
def test_a_busy_machine_is_shown_while_busy(width: int) -> None:
    progress = progress_after(130)
    progress.on_event(ThreadsEvent(130, threads=1, max_threads=4, busy=True))
    assert "with 1 of 4 threads, the machine is busy" in "\n".join(drawn(progress, width))
    progress.on_event(ThreadsEvent(131, threads=4, max_threads=4, busy=False))
    assert "threads" not in "\n".join(drawn(progress, width))


@pytest.mark.parametrize("height", [10, 14, 18, 24, 40])
def test_the_sample_is_dropped_if_space_is_short(height: int) -> None:
    progress = progress_after(130)
    progress.on_event(SampleEvent(130, "", "many words " * 200))
    lines = drawn(progress, 80, height)
    assert len(lines) < max(height, 14)  # one line stays free for the cursor
    assert any("sample" in line for line in lines) == (height >= 18)


def test_wide_and_control_characters() -> None:
    progress = RunProgress(Clock())
    wide = "狐狸" * 60 + "\x1b[2J\r\x07"
    progress.on_event(StartedEvent(0, wide, 10, 5, 65, 64, 1.0, info={"model": wide}))
    progress.on_event(stepped(1, loss=math.nan))
    progress.on_event(SampleEvent(1, wide, wide))
    lines = drawn(progress, 60)
    assert {cell_len(line) for line in lines} == {60}
    assert all(line.isprintable() for line in lines)


def test_a_long_title_is_truncated() -> None:
    progress = RunProgress(Clock())
    progress.on_event(StartedEvent(0, "runs/tale", 10, 5, 65, 64, 1.0, info={"model": "many words " * 20}))
    assert "…" in drawn(progress, 80)[0]
    assert "…" not in drawn(progress_after(20), 80)[0]


def test_an_unknown_floor() -> None:
    progress = RunProgress(Clock())
    progress.on_event(started(floor=None))
    progress.on_event(validated(1, 2.0))
    text = "\n".join(drawn(progress))
    assert "bits/byte   1.924" in text
    assert "floor" not in text


def test_the_end_is_a_summary() -> None:
    console = terminal(colour=False)
    display = LiveDisplay(console, clock=Clock())
    for event in simulated_run(300):
        display.on_event(event)
    display.close()
    text = output(console)
    final = text[text.rindex("╭─ GPT") :]
    for words in ("300 of 300, done, in 33 s", "1.3238", "normscope sample runs/tale", "runs/tale/report.html"):
        assert words in final
    assert "left" not in final
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_notices_are_printed_above_the_panel() -> None:
    console = terminal(colour=False)
    display = LiveDisplay(console, clock=Clock())
    display.on_event(started())
    display.on_event(stepped(1))
    display.on_event(NoticeEvent(1, "the disk is nearly full"))
    display.on_event(stepped(2))
    display.close()
    text = output(console)
    assert text.count("the disk is nearly full") == 1
    assert text.index("the disk is nearly full") < text.rindex("╭─ GPT")


def test_steps_are_drawn_at_most_five_times_a_second() -> None:
    console, clock = terminal(), Clock()
    display = LiveDisplay(console, clock=clock)
    display.on_event(started(steps=1000))
    for step in range(1, 1001):
        clock.now += 0.01
        display.on_event(stepped(step, steps=1000))
    display.close()
    assert 45 <= output(console).count("╭─") <= 55  # ten seconds


def test_rare_events_are_drawn_immediately() -> None:
    console = terminal(colour=False)
    display = LiveDisplay(console, clock=Clock())
    display.on_event(started())
    display.on_event(validated(50, 1.2345))
    assert "1.2345" in output(console)
    display.on_event(SampleEvent(50, "", "A word from the model."))
    assert "A word from the model." in output(console)
    display.close()


def test_an_error_keeps_the_panel_and_restores_the_cursor() -> None:
    console = terminal()
    display = LiveDisplay(console, clock=Clock())
    display.on_event(started())
    display.close()
    display.close()
    assert output(console).rstrip().endswith("\x1b[?25h")


def test_closing_before_any_event_prints_nothing() -> None:
    console = terminal()
    LiveDisplay(console).close()
    assert output(console).strip() == ""


def test_no_colors_without_color_support() -> None:
    console = terminal(colour=False)
    display = LiveDisplay(console, clock=Clock())
    for event in simulated_run(30):
        display.on_event(event)
    assert re.findall(r"\x1b\[[\d;]*3\dm", output(console)) == []
    console = terminal()
    display = LiveDisplay(console, clock=Clock())
    for event in simulated_run(30):
        display.on_event(event)
    assert re.findall(r"\x1b\[[\d;]*3\dm", output(console)) != []


@pytest.mark.parametrize("width", [60, 80])
def test_echoed_characters_fit_beside_the_panel(width: int) -> None:
    """^C is written where the cursor is; in a full line it would begin a new one, and the panel would slip."""
    console = terminal(width, colour=False)
    display = LiveDisplay(console, clock=Clock())
    display.on_event(started())
    display.close()
    lines = [re.sub(r"\x1b\[[?\d;]*\w", "", line) for line in output(console).splitlines()]
    assert max(map(cell_len, lines)) <= width - 2 * len("^C")


def test_the_end_shows_one_duration() -> None:
    """Of a run that was resumed the whole, and not the last part beside it."""
    progress = progress_after(130)
    assert "so far\n" in re.sub(r" +│", "", "\n".join(drawn(progress)))
    progress.on_event(FinishedEvent(130, "paused", seconds=3900.0))
    text = "\n".join(drawn(progress))
    assert "paused, everything saved, in 1 h 05 min" in text
    assert not re.search(r"tokens/s, .* so far", text)
