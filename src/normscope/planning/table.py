"""The table of a plan: a column for each number of GPUs and way of sharing the model."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from normscope.planning.plan import USABLE, PlanRow, ScalingPlan
from normscope.render.formatting import format_compact


def show_plan(found: ScalingPlan, console: Console) -> None:
    """Print the plan as a table, with notes."""
    model, cluster = found.model, found.cluster
    gpu, size = cluster.gpu, f"{format_compact(found.parameters)} parameters"
    if found.trained != found.parameters:
        size += f", {format_compact(found.trained)} of them trained"
    title = f"{found.name}: {model.depth} blocks of {model.width}, context {model.context}, {size}"
    console.print(Text(title, style="bold"))
    console.print(
        f"{gpu.name}: {gpu.flops(found.dtype) / 1e12:,.0f} TFLOPS in {found.dtype}; {cluster.gpus_per_node} per server,"
        f" {gpu.node_bandwidth:,g} GB/s to each other, {gpu.network_bandwidth:,g} GB/s between servers",
        highlight=False,
    )
    console.print()
    console.print(_table(found.rows))
    console.print()
    for note in _notes(found):
        console.print(Text(note, style="dim"))


def _table(rows: Sequence[PlanRow]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("GPUs")
    for i, row in enumerate(rows):
        is_first = i == 0 or rows[i - 1].gpus != row.gpus
        table.add_column(f"{row.gpus:,}" if is_first else "", justify="right", style="" if row.fits else "red")
    table.add_row("", *(f"[cyan]{row.parallel}[/cyan]" for row in rows))
    for name, cell, is_step in _LINES:
        if cell is None:
            table.add_row(f"[bold]{name}[/bold]")
        else:
            table.add_row(f"  {name}", *(cell(row) if row.fits or not is_step else "-" for row in rows))
    return table


def _gigabytes(part: str) -> Callable[[PlanRow], str]:
    return lambda row: _three_digits(getattr(row.memory, part) / 2**30)


def _three_digits(number: float) -> str:
    return f"{number:,.{3 if number < 0.9995 else 2 if number < 9.995 else 1 if number < 99.95 else 0}f}"


def _seconds(part: str) -> Callable[[PlanRow], str]:
    return lambda row: _three_digits(getattr(row.time, part))


_LINES: tuple[tuple[str, Callable[[PlanRow], str] | None, bool], ...] = (
    ("memory of a GPU, GB", None, False),
    ("weights", _gigabytes("weights"), False),
    ("gradients", _gigabytes("gradients"), False),
    ("optimizer state", _gigabytes("optimizer"), False),
    ("copies of weights", _gigabytes("copies"), False),
    ("activations", _gigabytes("activations"), False),
    ("gathered weights", _gigabytes("gathered"), False),
    ("peak", _gigabytes("total"), False),
    ("windows at a time", lambda row: f"{max(1, row.windows):,}", False),
    ("windows that fit", lambda row: f"{row.largest:,}", False),
    ("a step", None, True),
    ("batch, windows", lambda row: f"{row.batch:,}", True),
    ("micro-batches", lambda row: f"{row.micro_batches:,}", True),
    ("sent by a GPU, GB", lambda row: _three_digits(row.sent / 1e9), True),
    ("forward, backward, s", _seconds("compute"), True),
    ("Muon, s", _seconds("update"), True),
    ("waiting, s", _seconds("exposed"), True),
    ("step, s", _seconds("total"), True),
    ("tokens per second", lambda row: format_compact(round(row.tokens_per_second)), True),
    ("efficiency", lambda row: f"{row.efficiency:.1%}", True),
)
"""Name, cell (None for a heading), and whether it is about a step, which only a plan that fits has."""


def _notes(found: ScalingPlan) -> list[str]:
    cluster = found.cluster
    notes = [
        f"Assumed: {cluster.mfu:.0%} of the peak (--mfu), {cluster.link_efficiency:.0%} of the bandwidth and "
        f"{cluster.latency * 1e6:.0f} us per hop. Muon takes float32, at {cluster.gpu.float32_tflops:g} TFLOPS.",
        f"Of the memory, {USABLE:.0%} is planned. waiting: for messages that no computation hides.",
        "Memory and bytes follow the code that trains. Seconds are a model, not a measurement: see docs/plan.md.",
    ]
    if not all(row.fits for row in found.rows):
        notes.append("red: does not fit. fix: a shorter --context, a smaller model, or GPUs with more memory")
    divided = next((row for row in found.rows if row.fits and row.micro_batches > 1), None)
    if divided is not None and found.train.micro_batch is None:
        most = divided.largest * divided.gpus
        notes.append(f"Micro-batches need --micro-batch: {most} for {divided.gpus} GPUs with {divided.parallel}.")
    return notes
