"""Log a run as lines of text, for files and pipes; a terminal gets a live display instead."""

import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from normscope.render.formatting import format_count, format_duration, format_fixed, printable, quote
from normscope.runs.events import (
    END_REASONS,
    CheckpointEvent,
    FinishedEvent,
    NoticeEvent,
    Observer,
    SampleEvent,
    StartedEvent,
    StepEvent,
    ValidationEvent,
)
from normscope.training.observers.progress import Display, learning_rates


class LogLines(Display):
    """Observer that prints plain log lines, without colors or cursor movements.

    Logs the first and the last step, and in between at most one step every `every` seconds. In a long run it logs less
    often: about seventy lines for each doubling of the time, but at least one per minute.

    Args:
        stream: Output stream.
        every: Minimum time between two logged steps, in seconds.
        clock: Returns the time in seconds.

    >>> import sys
    >>> from normscope.runs.events import ValidationEvent
    >>> lines = LogLines(sys.stdout)
    >>> lines.on_event(ValidationEvent(step=20, loss=1.5, bits_per_byte=1.25, best=True, seconds=0.2))
      validation at step 20: loss 1.5000, 1.250 bits per byte, best so far
    """

    def __init__(self, stream: TextIO, every: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(every, clock)
        self._stream = stream

    def close(self) -> None:
        self._stream.flush()

    def _print(self, *lines: str) -> None:
        self._stream.writelines(f"{line}\n" for line in lines)
        self._stream.flush()

    def on_started(self, event: StartedEvent) -> None:
        self._next = -math.inf
        self._print(*_start(event))

    def on_step(self, event: StepEvent) -> None:
        progress = self._progress
        if not self._is_due(event.step == progress.steps, max(self._every, min(60.0, progress.elapsed / 100))):
            return
        parts = [
            f"step {event.step:{len(str(progress.steps))}d}/{progress.steps}",
            f"loss {progress.loss:.4f}",
            f"grad_norm {format_fixed(event.grad_norm):>7}",
            *learning_rates(event),
            f"epoch {event.epoch:.2f}",
            f"{format_count(progress.tokens_per_second)} tokens/s",
        ]
        if math.isfinite(progress.seconds_left):
            parts.append(f"{format_duration(progress.seconds_left)} left")
        self._print("  ".join(parts))

    def on_validation(self, event: ValidationEvent) -> None:
        best, line = self._progress.best, _validation(event, self._progress.floor)
        if best is not None and best is not event:
            line += f"; best {best.loss:.4f} at step {best.step}"
        self._print(f"  {line}")

    def on_sample(self, event: SampleEvent) -> None:
        self._print(f"  sample at step {event.step}: {quote(event.prompt + event.text)}")

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        self._print(f"  saved step {event.step}")

    def on_notice(self, event: NoticeEvent) -> None:
        self._print(*(f"  note at step {event.step}: {line}" for line in printable(event.text).splitlines()))

    def on_finished(self, event: FinishedEvent) -> None:
        progress, reason = self._progress, END_REASONS.get(event.reason, printable(event.reason))
        self._print(f"{reason}: step {event.step} of {progress.steps} in {format_duration(event.seconds)}")
        if progress.best is not None:
            self._print(f"  best {_validation(progress.best, progress.floor, mark_best=False)}")
        if progress.start is not None:
            self._print(*(f"  {name:<9}{command}" for name, command in next_commands(progress.start, event)))


def choose_display(stream: TextIO) -> Observer:
    """A live display on a terminal; log lines for files, pipes and terminals without cursor control.

    >>> import io
    >>> type(choose_display(io.StringIO())).__name__
    'LogLines'
    """
    if not stream.isatty():
        return LogLines(stream)
    from normscope.render.console import SafeConsole
    from normscope.training.observers.live import LiveDisplay

    console = SafeConsole(file=stream)
    can_draw = not console.is_dumb_terminal and console.encoding.startswith("utf")
    return LiveDisplay(console) if can_draw else LogLines(stream)


def next_commands(start: StartedEvent, event: FinishedEvent) -> list[tuple[str, str]]:
    """Suggested next commands and files after the end of a run."""
    path, normscope = shlex.quote(printable(start.folder)), command_name()
    resume = [] if event.reason == "done" else [("resume", f"{normscope} resume {path}")]
    use = "chat" if start.conversations else "sample"
    report = str(Path(printable(start.folder)) / "report.html")
    return [*resume, (use, f"{normscope} {use} {path}"), ("report", report)]


def command_name() -> str:
    """How to call normscope: by name, or by path if it is not on PATH."""
    called = Path(sys.argv[0])
    is_found = called.name != "normscope" or shutil.which("normscope") is not None
    return "normscope" if is_found else shlex.quote(str(called))


def _start(event: StartedEvent) -> list[str]:
    action = "training" if event.step == 0 else f"resuming from step {event.step}:"
    what = printable(event.info.get("model", "a model"))
    lines = [f"{action} {what}, {format_count(event.parameters)} parameters"]
    lines += [f"  {name:<12}{printable(value)}" for name, value in event.info.items() if name != "model"]
    lines.append(f"  {'steps':<12}{event.steps} of {format_count(event.batch_tokens)} tokens each")
    lines.append(f"  {'vocabulary':<12}{event.vocab_size} tokens, {event.bytes_per_token:.2f} bytes each")
    if event.floor is not None:
        lines.append(f"  {'floor':<12}{event.floor:.3f} bits per byte (entropy of the text)")
    lines.append(f"  {'folder':<12}{printable(event.folder)}")
    return lines


def _validation(event: ValidationEvent, floor: float | None, mark_best: bool = True) -> str:
    text = f"validation at step {event.step}: loss {event.loss:.4f}, {event.bits_per_byte:.3f} bits per byte"
    if floor is not None:
        text += f" ({event.bits_per_byte - floor:.3f} above the floor of {floor:.3f})"
    return f"{text}, best so far" if event.best and mark_best else text
