"""`normscope plan`: memory, messages and time of training on many GPUs, on paper."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from normscope.cli import options as opt
from normscope.cli.train import ModelSizeOptions
from normscope.errors import ConfigError
from normscope.render.formatting import format_compact
from normscope.training.config import FINETUNING, TrainConfig

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from normscope.planning.plan import PlanRow, ScalingPlan

TrainingSettings = opt.config_options(
    "TrainingSettings",
    "Settings of the training.",
    TrainConfig,
    ("batch", "micro_batch", "optimizer", "ns_steps", "precision", "parallel", *FINETUNING),
)


@dataclass(frozen=True)
class ClusterOptions:
    """GPUs and their links. Defaults are those of the GPU's data sheets."""

    gpu: opt.Str = "h100"
    """GPU: a100, h100, h200 or b200, in servers such as NVIDIA's DGX."""

    gpus_per_node: opt.Int = 8
    """GPUs per server."""

    memory: opt.OptionalFloat = None
    """Memory of a GPU in GB."""

    flops: opt.OptionalFloat = None
    """Peak of a GPU in matrix products, in TFLOPS."""

    node_bandwidth: opt.OptionalFloat = None
    """GB per second from a GPU to the others of its server, in one direction."""

    network_bandwidth: opt.OptionalFloat = None
    """GB per second from a server to other servers, over all of its network cards."""

    mfu: opt.Float = 0.4
    """Assumed part of the peak that forward and backward passes reach."""


@dataclass(frozen=True)
class PlannedModel(ModelSizeOptions):
    """Size of a preset, and its architecture."""

    depth: opt.OptionalInt = None
    """Number of blocks; changes nothing else."""

    vocab_size: opt.OptionalInt = None
    """Vocabulary size."""


@dataclass(frozen=True)
class Plan:
    """Plan training on many GPUs: memory, messages and time of a step, with DDP and FSDP2. Trains nothing.

    For example:
      normscope plan gpt2 --gpus 8 64 1024
      normscope plan --preset llama --depth 32 --width 4096 --heads 32 --gpu b200 --batch 1024
      normscope plan runs/stories --gpus 8
    """

    source: Annotated[tyro.conf.Positional[Path | None], opt.option("[SOURCE]")] = None
    """Preset, run folder, or a checkpoint of another tool (default: nanochat)."""

    preset: opt.OptionalStr = None
    """Model preset: nanochat, nanochat-2026-07, gpt2 or llama, at its full size."""

    gpus: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (8, 64, 1024)
    """Numbers of GPUs."""

    json: opt.Flag = False
    """Print a JSON object."""

    size: PlannedModel = field(default_factory=PlannedModel)
    training: TrainingSettings = field(default_factory=TrainingSettings)  # type: ignore[valid-type]
    cluster: ClusterOptions = field(default_factory=ClusterOptions)


def main(arguments: Sequence[str]) -> None:
    command = opt.read_arguments(Plan, "plan", arguments)
    if command.source is not None and command.preset is not None:
        raise ConfigError(f"{command.source} and --preset {command.preset} are two models\nfix: give one of them")
    sizes = {name: value for name, value in opt.given(command.size).items() if name != "model"}
    from rich.console import Console

    from normscope.planning.plan import plan

    with Console(stderr=True).status("counting tensors"):
        found = plan(
            command.source or command.preset or "nanochat",
            gpus=command.gpus,
            model=opt.join_settings(sizes, command.size.model),
            **opt.given(command.training),
            **opt.given(command.cluster),
        )
    if command.json:
        print(json.dumps(_as_json(found), indent=1))
    else:
        _show(found, Console())


def _as_json(found: "ScalingPlan") -> dict[str, Any]:
    from normscope.models.config_json import config_to_json

    rows = []
    for row in found.rows:
        messages = [{**dataclasses.asdict(each), "sent": each.sent(row.gpus, "nccl")} for each in row.messages]
        totals = {
            "memory": {**dataclasses.asdict(row.memory), "total": row.memory.total},
            "time": {**dataclasses.asdict(row.time), "total": row.time.total},
        }
        rows.append({**dataclasses.asdict(row), **totals, "messages": messages, "fits": row.fits})
    return {
        **dataclasses.asdict(found),
        "model": config_to_json(found.model),
        "train": found.train.to_json(),
        "rows": rows,
    }


def _show(found: "ScalingPlan", console: "Console") -> None:
    from rich.text import Text

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


def _table(rows: Sequence["PlanRow"]) -> "Table":
    """A column for each number of GPUs and way of sharing the model."""
    from rich.table import Table

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


def _gigabytes(part: str) -> Callable[["PlanRow"], str]:
    return lambda row: _three_digits(getattr(row.memory, part) / 2**30)


def _three_digits(number: float) -> str:
    return f"{number:,.{3 if number < 0.9995 else 2 if number < 9.995 else 1 if number < 99.95 else 0}f}"


def _seconds(part: str) -> Callable[["PlanRow"], str]:
    return lambda row: _three_digits(getattr(row.time, part))


_LINES: tuple[tuple[str, Callable[["PlanRow"], str] | None, bool], ...] = (
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


def _notes(found: "ScalingPlan") -> list[str]:
    from normscope.planning.plan import USABLE

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
