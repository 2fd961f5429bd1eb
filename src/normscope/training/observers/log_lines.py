"""Log a run as lines of text, for files and pipes."""

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
    RunEvent,
    SampleEvent,
    StartedEvent,
    StepEvent,
    ValidationEvent,
)
from normscope.training.observers.progress import RunProgress


class LogLines:
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
        self._stream, self._every, self._clock = stream, every, clock
        self._progress = RunProgress(clock)
        self._next = -math.inf

    def on_event(self, event: RunEvent) -> None:
        self._progress.on_event(event)
        for line in self._lines(event):
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.flush()

    def _lines(self, event: RunEvent) -> list[str]:
        match event:
            case StartedEvent():
                self._next = -math.inf
                return _start(event)
            case StepEvent():
                return [self._step(event)] if self._is_due(event) else []
            case ValidationEvent():
                return [f"  {_validation(event, self._progress.floor)}"]
            case SampleEvent():
                return [f"  sample at step {event.step}: {quote(event.prompt + event.text)}"]
            case CheckpointEvent():
                return [f"  saved step {event.step}"]
            case NoticeEvent():
                return [f"  note at step {event.step}: {line}" for line in printable(event.text).splitlines()]
            case FinishedEvent():
                return self._end(event)
        return []  # signal events are only shown in the report

    def _is_due(self, event: StepEvent) -> bool:
        now = self._clock()
        if now < self._next and event.step != self._progress.steps:
            return False
        self._next = now + max(self._every, min(60.0, self._progress.elapsed / 100))
        return True

    def _step(self, event: StepEvent) -> str:
        progress = self._progress
        width = len(str(progress.steps))
        parts = [
            f"step {event.step:{width}d}/{progress.steps}",
            f"loss {progress.loss:.4f}",
            f"grad_norm {format_fixed(event.grad_norm):>7}",
            f"lr {event.lr_scale:.2f}",
            f"epoch {event.epoch:.2f}",
            f"{format_count(progress.tokens_per_second)} tokens/s",
        ]
        if math.isfinite(progress.seconds_left):
            parts.append(f"{format_duration(progress.seconds_left)} left")
        return "  ".join(parts)

    def _end(self, event: FinishedEvent) -> list[str]:
        lines = [
            f"{END_REASONS.get(event.reason, printable(event.reason))}: step {event.step} of {self._progress.steps}"
        ]
        lines[0] += f" in {format_duration(event.seconds)}"
        if self._progress.best is not None:
            lines.append(f"  best {_validation(self._progress.best, self._progress.floor, mark_best=False)}")
        if self._progress.start is not None:
            lines += [f"  {label:<9}{command}" for label, command in next_commands(self._progress.start.folder, event)]
        return lines


def next_commands(folder: str, event: FinishedEvent) -> list[tuple[str, str]]:
    """Suggested next commands and files after the end of a run.

    >>> next_commands("runs/tale", FinishedEvent(step=9, reason="done", seconds=1.0))
    [('sample', 'normscope sample runs/tale'), ('report', 'runs/tale/report.html')]
    """
    path, normscope = shlex.quote(printable(folder)), command_name()
    resume = [] if event.reason == "done" else [("resume", f"{normscope} resume {path}")]
    return [*resume, ("sample", f"{normscope} sample {path}"), ("report", str(Path(printable(folder)) / "report.html"))]


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
