"""Plan the training of a model on many GPUs: what fits, what is sent, and how much of the time is computation."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.checks import check_positive_int, check_positive_number
from normscope.errors import ConfigError
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import preset as build_preset
from normscope.planning.activations import activation_bytes
from normscope.planning.gpus import Cluster, MatmulDtype, gpu
from normscope.planning.layout import Layout, share_model
from normscope.planning.memory import RankMemory, largest_memory
from normscope.planning.step_time import StepTime, flops_per_token, step_time
from normscope.planning.traffic import Message, sent_bytes, step_messages
from normscope.runs.initial_weights import empty_model, set_trainable
from normscope.runs.read_source import find_source
from normscope.runs.run import Run
from normscope.training.config import ParallelName, TrainConfig

USABLE = 0.9
"""Part of a GPU's memory for tensors that are planned. The rest is for CUDA, the allocator and temporary tensors."""
MAX_GPUS = 2**16


@dataclass(frozen=True)
class PlanRow:
    """A number of GPUs, and a way of sharing the model.

    Args:
        gpus: Number of GPUs.
        parallel: ddp or fsdp.
        batch: Windows per optimizer step, of all GPUs; 0 if not even one per GPU fits.
        windows: Windows that a GPU computes at a time.
        micro_batches: How often it does so in a step.
        largest: Windows at a time that fit into a GPU.
        memory: Bytes on the GPU that needs the most.
        messages: What the GPUs send to each other in a step.
        sent: Bytes that a GPU sends in a step.
        time: Seconds of a step.
        tokens_per_second: Training throughput of all GPUs.
        efficiency: Throughput relative to GPUs that only compute forward and backward passes, all equally much.
    """

    gpus: int
    parallel: ParallelName
    batch: int
    windows: int
    micro_batches: int
    largest: int
    memory: RankMemory
    messages: tuple[Message, ...]
    sent: float
    time: StepTime
    tokens_per_second: float
    efficiency: float

    @property
    def fits(self) -> bool:
        return 0 < self.windows <= self.largest


@dataclass(frozen=True)
class ScalingPlan:
    """What training takes on several numbers of GPUs.

    Args:
        name: Preset or path of the model.
        model, train: The config that is planned.
        cluster: GPUs and links.
        dtype: Dtype of matrix products. Weights, gradients and messages are float32.
        parameters: Number of parameters.
        trained: Number of parameters that are trained.
        rows: One for each number of GPUs and way of sharing the model.
    """

    name: str
    model: GPTConfig
    train: TrainConfig
    cluster: Cluster
    dtype: MatmulDtype
    parameters: int
    trained: int
    rows: tuple[PlanRow, ...]


def plan(
    source: str | Path = "nanochat",
    *,
    gpus: Sequence[int] = (8, 64, 1024),
    gpu_name: str = "h100",
    gpus_per_node: int = 8,
    memory: float | None = None,
    flops: float | None = None,
    link: float | None = None,
    network: float | None = None,
    mfu: float = 0.4,
    model: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ScalingPlan:
    """Plan the training of a model on many GPUs, like `normscope plan`. Nothing is trained or allocated.

    Memory and bytes are those of the code that trains, and tests compare them with measured ranks. Times come from a
    simple model (`normscope.planning.step_time`) of GPUs that nobody has timed: they tell which of two plans is better.

    Args:
        source: A preset, a run, or a checkpoint of another tool, of which only the config is used.
        gpus: Numbers of GPUs.
        gpu_name: a100, h100, h200 or b200.
        gpus_per_node: GPUs per server.
        memory, flops, link, network: Facts of the GPU to replace: memory in GB, TFLOPS in matrix products, GB per
            second to GPUs of the same server, and GB per second from one server to others.
        mfu: Assumed part of the peak that forward and backward passes reach.
        model: Settings of a preset by name, such as {"depth": 24}.
        settings: Fields of `TrainConfig`: batch, micro_batch, optimizer, precision, parallel, lora, ... Without a
            batch, each GPU gets as many windows as fit.

    Example:
        >>> found = plan("gpt2", gpus=[2], model={"depth": 2, "context": 64}, batch=16)
        >>> [(row.parallel, row.windows, row.fits) for row in found.rows]
        [('ddp', 8, True), ('fsdp', 8, True)]
    """
    check_positive_number(mfu=mfu)
    if mfu > 1:
        raise ConfigError(f"mfu={mfu} must be at most 1: the part of the peak that is reached")
    for count in gpus:
        check_positive_int(gpus=count)
        if count > MAX_GPUS:
            raise ConfigError(f"gpus={count} must be at most {MAX_GPUS}")
    name, config, train = _resolve(source, {} if model is None else model, settings)
    dtype: MatmulDtype = "float32" if train.precision == "float32" else "bfloat16"
    found = gpu(
        gpu_name, **{"memory_gb": memory, f"{dtype}_tflops": flops, "link_gbytes": link, "network_gbytes": network}
    )
    cluster = Cluster(found, gpus_per_node, mfu)
    empty = empty_model(config)
    set_trainable(empty, train)
    planner = _Planner(empty, dataclasses.replace(train, precision=dtype), cluster, has_batch="batch" in settings)
    ways: Sequence[ParallelName] = (train.parallel,) if "parallel" in settings else ("ddp", "fsdp")
    parameters = list(empty.parameters())
    return ScalingPlan(
        name=name,
        model=config,
        train=train,
        cluster=cluster,
        dtype=dtype,
        parameters=sum(weight.numel() for weight in parameters),
        trained=sum(weight.numel() for weight in parameters if weight.requires_grad),
        rows=tuple(planner.row(count, parallel) for count in gpus for parallel in ways),
    )


def _resolve(
    source: str | Path, model: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[str, GPTConfig, TrainConfig]:
    """The name of a source, its config, and the settings of the training: a run's own, unless given."""
    found = find_source(source)
    if found.kind == "preset":
        config = build_preset(str(found.path), **model)
        return str(found.path), config, TrainConfig(**{"steps": 1, "batch": 1, **settings})
    if model:
        names = ", ".join(model)
        fix = "remove them, or use a preset instead"
        raise ConfigError(f"the settings of the model in {source} are fixed, but got {names}\nfix: {fix}")
    if found.read is not None:
        return str(source), found.read(found.path).config, TrainConfig(**{"steps": 1, "batch": 1, **settings})
    run = Run.open(found.path).config
    return str(source), run.model, dataclasses.replace(run.train, **settings)


class _Planner:
    """Plans one model on one kind of cluster."""

    def __init__(self, model: GPT, train: TrainConfig, cluster: Cluster, has_batch: bool) -> None:
        self.model, self.train, self.cluster, self.has_batch = model, train, cluster, has_batch
        # Of the settings that do not change activations, only one value: they are counted once.
        self._activation_train = dataclasses.replace(train, batch=1, micro_batch=None, parallel="ddp")
        self._flops_per_token = flops_per_token(model)

    def row(self, gpus: int, parallel: ParallelName) -> PlanRow:
        layout = share_model(self.model, self.train, parallel, gpus)
        largest = self._largest(layout)
        batch = self.train.batch if self.has_batch else gpus * largest
        at_a_time = min(batch, self.train.micro_batch or batch)
        windows, micro_batches = -(-at_a_time // gpus), -(-batch // at_a_time) if batch else 0
        memory = self._memory(layout, max(1, windows))
        messages = step_messages(layout, micro_batches)
        context = self.model.config.context
        work = windows * micro_batches * context * self._flops_per_token
        time = step_time(layout, messages, work, self.cluster, self.train.precision)
        tokens = batch * context / time.total if batch else 0.0
        peak = self.cluster.mfu * self.cluster.gpu.flops(self.train.precision)
        return PlanRow(
            gpus=gpus,
            parallel=parallel,
            batch=batch,
            windows=windows,
            micro_batches=micro_batches,
            largest=largest,
            memory=memory,
            messages=tuple(messages),
            sent=sent_bytes(messages, gpus, "nccl"),
            time=time,
            tokens_per_second=tokens,
            efficiency=tokens * self._flops_per_token / (gpus * peak),
        )

    def _memory(self, layout: Layout, windows: int) -> RankMemory:
        return largest_memory(layout, activation_bytes(self.model.config, self._activation_train, windows))

    def _largest(self, layout: Layout) -> int:
        """The largest number of windows that fits: found on a line through two of them, and then checked."""
        space = USABLE * self.cluster.gpu.memory
        one, two = self._memory(layout, 1).total, self._memory(layout, 2).total
        if one > space:
            return 0
        windows = 1 + int((space - one) / max(1, two - one))
        while windows > 1 and self._memory(layout, windows).total > space:
            windows -= 1
        return windows


def message_rows(row: PlanRow) -> Iterator[tuple[Message, float]]:
    """The messages of a row, each with the bytes that a GPU sends."""
    for message in row.messages:
        yield message, message.sent(row.gpus, "nccl")
