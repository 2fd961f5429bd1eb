"""Live display of a run in a terminal: a panel that is redrawn.

To add a row, yield it in `_rows`; to add a box such as the sample's, append it to `parts` in `panel`.
"""

import math
import time
from collections.abc import Callable, Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from normscope.render.formatting import format_bytes, format_count, format_duration, format_fixed, printable
from normscope.render.sparkline import sparkline
from normscope.runs.events import (
    END_REASONS,
    FinishedEvent,
    NoticeEvent,
    RunEvent,
    SampleEvent,
    SignalEvent,
    StepEvent,
    ValidationEvent,
)
from normscope.runtime.memory import current_memory, peak_memory
from normscope.training.observers.log_lines import next_commands
from normscope.training.observers.progress import Display, RunProgress, learning_rates

LABEL_WIDTH = 12  # columns of the row labels
FRAME_WIDTH = 4  # columns of the frame and its padding
FRAME_LINES = 2
SAMPLE_LINES = 6
LINES_BELOW = 3  # kept free below the panel, the cursor's among them
ECHO_WIDTH = 4
"""Columns left free beside the panel: the terminal echoes ^C at the cursor, twice if Ctrl-C is pressed twice. In a full
line that would wrap, and the next panel would be drawn one line too low."""


class LiveDisplay(Display):
    """Shows progress, losses, speed and the last sample of a run in a panel; notices are printed above it.

    The panel is drawn on events and never by a background thread, which would take time from the training.

    Args:
        console: A rich console on a terminal.
        every: Minimum time between two redraws for steps, in seconds; other events are drawn immediately.
        clock: Returns the time in seconds.
    """

    def __init__(self, console: Console, every: float = 0.2, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(every, clock)
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def on_event(self, event: RunEvent) -> None:
        super().on_event(event)
        hidden = isinstance(event, NoticeEvent | SignalEvent)
        if not hidden and self._is_due(not isinstance(event, StepEvent), self._every):
            self._draw()
        if isinstance(event, FinishedEvent):
            self._live.stop()

    def on_notice(self, event: NoticeEvent) -> None:
        self._console.print(Text.assemble((f"step {event.step} ", "dim"), (printable(event.text), "yellow")))

    def close(self) -> None:
        """Stop drawing: leave the panel and restore the cursor."""
        self._live.stop()

    def _draw(self) -> None:
        if not self._live.is_started:
            self._live.start()
        width = self._console.width - ECHO_WIDTH
        self._live.update(panel(self._progress, width, self._console.height), refresh=True)


def panel(progress: RunProgress, width: int, height: int) -> RenderableType:
    """Render the current state of a run within a width and height; the sample is dropped first if space is short."""
    inner = max(20, width - FRAME_WIDTH)
    rows = Table.grid(padding=(0, 1, 0, 0))
    rows.add_column(style="dim", width=LABEL_WIDTH - 1, no_wrap=True)
    rows.add_column(no_wrap=True, overflow="ellipsis")
    lines_left = height - FRAME_LINES - LINES_BELOW
    for name, content in _rows(progress, inner - LABEL_WIDTH):
        rows.add_row(name, content)
        lines_left -= len(content.plain.splitlines())
    parts: list[RenderableType] = [rows]
    lines = min(SAMPLE_LINES, lines_left - FRAME_LINES)
    if progress.sample is not None and lines > 0:
        parts.append(_sample(progress.sample, inner, lines))
    title, folder = "normscope", None
    if (start := progress.start) is not None:
        title = f"{printable(start.info.get('model', 'training'))}, {format_count(start.parameters)} parameters"
        folder = Text(printable(start.folder), style="dim")
    heading = Text(title, style="bold")
    heading.truncate(inner - 2, overflow="ellipsis")
    color = "cyan" if progress.end is None else "green" if progress.end.reason == "done" else "yellow"
    return Panel(
        Group(*parts),
        title=heading,
        title_align="left",
        subtitle=folder,
        subtitle_align="right",
        border_style=color,
        width=width,
    )


def _rows(progress: RunProgress, columns: int) -> Iterator[tuple[str, Text]]:
    """The rows of the panel: a name, and the current state within a number of columns."""
    last, end = progress.last, progress.end
    yield "step", _steps(progress, columns)
    yield "loss", _loss(progress, columns)
    if progress.validation is not None:
        yield "validation", _validation(progress.validation, progress.best)
        yield "bits/byte", _bits(progress, progress.validation.bits_per_byte, columns)
    if last is not None:
        speed, busy = f"{format_count(progress.tokens_per_second)} tokens/s", progress.threads
        if progress.start is not None and "ranks" in progress.start.info:
            speed += f" of {printable(progress.start.info['ranks'])} ranks"
        if busy is not None and end is None:
            speed += f" with {busy.threads} of {busy.max_threads} threads, the machine is busy"
        # The final row shows the time of the whole run, which may include earlier sessions.
        yield "speed", Text(speed if end is not None else f"{speed}, {format_duration(progress.elapsed)} so far")
        state = [*learning_rates(last), f"grad norm {format_fixed(last.grad_norm)}", f"epoch {last.epoch:.2f}"]
        yield "optimizer", Text(", ".join(state))
    yield "memory", Text(f"{format_bytes(current_memory())} now, {format_bytes(peak_memory())} peak")
    if progress.saved is not None:
        yield "saved", Text(f"step {progress.saved.step}")
    if end is not None and progress.start is not None:
        for name, what in next_commands(progress.start, end):
            yield name, Text(what, style="bold")


def _steps(progress: RunProgress, columns: int) -> Text:
    done, steps = progress.step, max(1, progress.steps)
    if progress.end is not None:
        why = END_REASONS.get(progress.end.reason, printable(progress.end.reason))
        return Text(f"{done} of {steps}, {why}, in {format_duration(progress.end.seconds)}", style="bold")
    left = "" if math.isnan(progress.seconds_left) else f"{format_duration(progress.seconds_left)} left"
    before = f"{done:{len(str(steps))}d} of {steps} "
    after = f" {100 * done // steps:3d} %  {left:<16}"
    return Text.assemble((before, "bold"), _bar(done / steps, columns - len(before) - len(after), "cyan"), after)


def _loss(progress: RunProgress, columns: int) -> Text:
    number = f"{progress.loss:.4f}" if math.isfinite(progress.loss) else "..."
    # Logarithmic: the drop of the first steps would leave no height for the rest.
    logs = [math.log(max(loss, 1e-9)) for loss in progress.losses.values]
    curve = sparkline(logs, columns - 9, height=2)
    upper, lower = curve or ("", "")
    return Text.assemble((f"{number:<9}", "bold"), (f"{upper}\n", "cyan"), " " * 9, (lower, "cyan"))


def _validation(now: ValidationEvent, best: ValidationEvent | None) -> Text:
    text = Text.assemble((f"{now.loss:.4f}", "bold"), f"   at step {now.step}")
    if now is best:
        text.append(", best so far", style="green")
    elif best is not None:
        text.append(f"; best {best.loss:.4f} at step {best.step}")
    return text


def _bits(progress: RunProgress, bits: float, columns: int) -> Text:
    """Bits per byte and, if the floor is known, the progress from a uniform guess down to it."""
    text = Text(f"{bits:<9.3f}", style="bold")
    if progress.learned is None or progress.floor is None:
        return text
    before, after = f"{progress.uniform_bits:.2f} ", f" floor {progress.floor:.3f} ({bits - progress.floor:+.3f})"
    if columns > 60:
        before = f"uniform {before}"
    bar = _bar(progress.learned, columns - 9 - len(before) - len(after), "green")
    return Text.assemble(text, (before, "dim"), bar, after)


def _sample(sample: SampleEvent, inner: int, lines: int) -> Panel:
    text = Text.assemble((printable(sample.prompt).lstrip(), "dim"), printable(sample.text).rstrip())
    title = Text(f"sample, step {sample.step}", style="dim")
    return Panel(_Clipped(text, lines), title=title, title_align="left", border_style="dim", width=inner)


class _Clipped:
    """A text, wrapped and truncated to a number of lines."""

    def __init__(self, text: Text, lines: int) -> None:
        self._text, self._lines = text, lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wrapped = self._text.wrap(console, options.max_width, no_wrap=False)
        shown = wrapped[: self._lines]
        if len(wrapped) > self._lines:
            shown[-1].truncate(options.max_width - 2)
            shown[-1].append(" …")
        yield Text("\n").join(shown)


def _bar(fraction: float, width: int, style: str) -> Text:
    """A progress bar with a resolution of half a character."""
    if width < 1:
        return Text()
    halves = round(2 * width * min(1.0, max(0.0, fraction)))
    full, half = divmod(halves, 2)
    return Text.assemble(("━" * full + "╸" * half, style), ("─" * (width - full - half), "dim"))
