"""Plan the training of a model on many GPUs: what fits, what is sent, and how much of the time is computation."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.checks import check_positive_int, check_positive_number, check_setting_names
from normscope.errors import ConfigError
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import preset as build_preset
from normscope.planning.activations import kept_bytes
from normscope.planning.gpus import Cluster, MatmulDtype, find_gpu
from normscope.planning.layout import share_model
from normscope.planning.memory import RankMemory, fullest_rank, rank_memory
from normscope.planning.step_time import StepTime, flops_per_token, step_time
from normscope.planning.traffic import Message, sent_bytes, step_messages
from normscope.runs.initial_weights import empty_model, set_trainable
from normscope.runs.read_source import find_source
from normscope.runs.run import Run
from normscope.training.config import ParallelName, TrainConfig

USABLE = 0.9
"""Part of a GPU's memory for tensors that are planned. The rest is for CUDA, the allocator and temporary tensors."""
MAX_GPUS = 2**14


@dataclass(frozen=True)
class PlanRow:
    """A number of GPUs, and a way of sharing the model.

    Args:
        gpus: Number of GPUs.
        parallel: ddp or fsdp.
        batch: Windows per optimizer step, of all GPUs; 0 if none was given and not even one per GPU fits.
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
    gpus: int | Sequence[int] = (8, 64, 1024),
    gpu: str = "h100",
    gpus_per_node: int = 8,
    memory: float | None = None,
    flops: float | None = None,
    node_bandwidth: float | None = None,
    network_bandwidth: float | None = None,
    mfu: float = 0.4,
    model: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ScalingPlan:
    """Plan the training of a model on many GPUs, like `normscope plan`. Nothing is trained or allocated.

    Memory and bytes follow the code that trains; tests compare them with measured ranks. Seconds come from a simple
    model, `normscope.planning.step_time`, which has not been timed on such GPUs: use them to compare plans.

    Args:
        source: A preset, a run, or a checkpoint of another tool, of which only the config is used.
        gpus: Numbers of GPUs.
        gpu: a100, h100, h200 or b200.
        gpus_per_node: GPUs per server.
        memory, flops: Other facts of the GPU: memory in GB, and TFLOPS in matrix products.
        node_bandwidth, network_bandwidth: Other facts of the links: GB per second from a GPU to others of its server,
            and from a server to other servers.
        mfu: Assumed part of the peak that forward and backward passes reach.
        model: Settings of a preset by name, such as {"depth": 24}.
        settings: Fields of `TrainConfig`: batch, micro_batch, optimizer, precision, parallel, lora, ... Without a
            batch, each GPU gets as many windows as fit. A batch that does not fit is divided into micro-batches.

    Example:
        >>> found = plan("gpt2", gpus=2, model={"depth": 2, "context": 64}, batch=16)
        >>> [(row.parallel, row.windows, row.fits) for row in found.rows]
        [('ddp', 8, True), ('fsdp', 8, True)]
    """
    counts = [gpus] if isinstance(gpus, int) else list(gpus)
    _check(counts, mfu)
    check_setting_names("the training", settings, TrainConfig)
    name, config, train, has_batch = _resolve(source, {} if model is None else model, settings)
    if train.micro_batch is not None and not has_batch:
        raise ConfigError(f"micro_batch={train.micro_batch} divides a batch, but there is none\nfix: give batch too")
    dtype: MatmulDtype = "float32" if train.precision == "float32" else "bfloat16"
    facts = {"memory_gb": memory, "node_bandwidth": node_bandwidth, "network_bandwidth": network_bandwidth}
    cluster = Cluster(find_gpu(gpu, **facts, **{f"{dtype}_tflops": flops}), gpus_per_node, mfu)
    empty = empty_model(config)
    set_trainable(empty, train)
    planner = _Planner(empty, train, cluster, dtype, has_batch)
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
        rows=tuple(planner.row(count, way) for count in counts for way in (ways if count > 1 else ways[:1])),
    )


def _check(gpus: Sequence[int], mfu: float) -> None:
    if not gpus:
        raise ConfigError("no number of GPUs is given\nfix: gpus=8")
    for count in gpus:
        check_positive_int(gpus=count)
        if count > MAX_GPUS:
            raise ConfigError(f"gpus={count} must be at most {MAX_GPUS:,}")
    check_positive_number(mfu=mfu)
    if mfu > 1:
        raise ConfigError(f"mfu={mfu} must be at most 1: the part of the peak that is reached")


def _resolve(
    source: str | Path, model: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[str, GPTConfig, TrainConfig, bool]:
    """The name of a source, its config, the settings of the training, and whether these have a batch."""
    found = find_source(source)
    if model and found.kind != "preset":
        fix = "remove them, or use a preset instead"
        raise ConfigError(f"the settings of the model in {source} are fixed, but got {', '.join(model)}\nfix: {fix}")
    if found.kind == "run":
        run = Run.open(found.path).config
        return str(source), run.model, dataclasses.replace(run.train, **settings), True
    train = TrainConfig(**{"steps": 1, "batch": 1, **settings})
    config = build_preset(str(found.path), **model) if found.read is None else found.read(found.path).config
    return str(source), config, train, "batch" in settings


class _Planner:
    """Plans one model on one kind of cluster."""

    def __init__(self, model: GPT, train: TrainConfig, cluster: Cluster, dtype: MatmulDtype, has_batch: bool) -> None:
        self.model, self.train, self.cluster, self.dtype, self.has_batch = model, train, cluster, dtype, has_batch
        self._flops_per_token = flops_per_token(model)

    def row(self, gpus: int, parallel: ParallelName) -> PlanRow:
        layout = share_model(self.model, self.train, parallel, gpus)
        rank = fullest_rank(layout)

        def memory(windows: int) -> RankMemory:
            return rank_memory(layout, rank, kept_bytes(self.model.config, self.train, windows, self.dtype))

        largest = self._largest(memory)
        batch = self.train.batch if self.has_batch else gpus * largest
        at_a_time = min(batch, self.train.micro_batch or max(1, largest) * gpus)
        windows, micro_batches = -(-at_a_time // gpus), -(-batch // at_a_time) if batch else 0
        messages = step_messages(layout, micro_batches)
        tokens = batch * self.model.config.context
        of_busiest = batch // at_a_time * windows + -(-(batch % at_a_time) // gpus) if batch else 0
        work = of_busiest * self.model.config.context * self._flops_per_token
        time = step_time(layout, messages, work, self.cluster, self.dtype)
        peak = gpus * self.cluster.mfu * self.cluster.gpu.flops(self.dtype)
        return PlanRow(
            gpus=gpus,
            parallel=parallel,
            batch=batch,
            windows=windows,
            micro_batches=micro_batches,
            largest=largest,
            memory=memory(max(1, windows)),
            messages=tuple(messages),
            sent=sent_bytes(messages, gpus, "nccl"),
            time=time,
            tokens_per_second=tokens / time.total,
            efficiency=tokens * self._flops_per_token / peak / time.total,
        )

    def _largest(self, memory: Callable[[int], RankMemory]) -> int:
        """The largest number of windows that fits."""
        space = USABLE * self.cluster.gpu.memory
        if memory(1).total > space:
            return 0
        windows = 1
        for _ in range(3):  # it would be a line, but for a bend where logits begin to be computed in chunks
            found = memory(windows)
            others = found.total - found.activations
            windows = max(1, int((space - others) * windows / found.activations))
        while windows > 1 and memory(windows).total > space:
            windows -= 1
        return windows
