"""`normscope plan`: memory, messages and time of training on many GPUs, on paper."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from normscope.cli import options as opt
from normscope.cli.train import ModelSizeOptions
from normscope.errors import ConfigError
from normscope.training.config import FINETUNING, TrainConfig

if TYPE_CHECKING:
    from normscope.planning.plan import ScalingPlan

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
        from normscope.planning.table import show_plan

        show_plan(found, Console())


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
