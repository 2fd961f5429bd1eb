"""Describe the machine, what a run would use of it, and the measured cost of a config."""

import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normscope._version import __version__
from normscope.checks import check_config, check_positive_number
from normscope.data.batches import Batches
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import preset as build_preset
from normscope.ops.kernel_mode import select_backend
from normscope.runs.initial_weights import set_trainable
from normscope.runs.read_source import read_source
from normscope.runtime.adaptive_threads import TorchThreads, thread_mode
from normscope.runtime.devices import cpp_compiler, resolve_device
from normscope.runtime.machine_load import measure_load
from normscope.runtime.memory import current_memory, keep_freed_memory, meminfo, peak_memory
from normscope.runtime.precision import choose_precision, probe_bfloat16
from normscope.runtime.rng import preserve_rng
from normscope.training.config import TrainConfig
from normscope.training.finetune import finetuning_recipe, source_config
from normscope.training.memory_estimate import check_memory, describe_memory, trained_parameters
from normscope.training.recipes import recipe as lookup_recipe
from normscope.training.trainer import Trainer


@dataclass(frozen=True)
class DoctorRow:
    """One row of the report: a name, its value, and a note."""

    name: str
    value: str
    note: str = ""


def describe_machine(folder: Path) -> Iterator[DoctorRow]:
    """The hardware and software a run in this folder would have."""
    yield DoctorRow("normscope", __version__, f"Python {platform.python_version()}, torch {torch.__version__}")
    yield DoctorRow("CPU", cpu_name(), f"{os.cpu_count()} cores")
    load = measure_load()
    yield DoctorRow("load", str(load), "busy: steps will be slower and may use fewer threads" if load.is_busy else "")
    sizes = {"MemAvailable": 0, "MemTotal": 0} | meminfo()
    available = f"{sizes['MemAvailable'] / 1e9:.1f} of {sizes['MemTotal'] / 1e9:.1f} GB free"
    yield DoctorRow("memory", available if sizes["MemAvailable"] else "unknown")
    free = shutil.disk_usage(folder).free
    yield DoctorRow("disk", f"{free / 1e9:.1f} GB free", f"in {folder.resolve()}")


def describe_choices(config: TrainConfig, *, probe: bool = True) -> Iterator[DoctorRow]:
    """What a run would use, and why. The bfloat16 probe takes a few seconds."""
    device = resolve_device(config.device)
    yield DoctorRow("device", str(device), "accelerator found" if device.type != "cpu" else "no accelerator found")
    mode = "fewer while the machine is busy" if thread_mode() == "adaptive" else "fixed by NORMSCOPE_THREADS"
    yield DoctorRow("threads", str(torch.get_num_threads()), f"torch's default, set with OMP_NUM_THREADS; {mode}")
    if select_backend(torch.empty(1)) == "fused":
        yield DoctorRow("kernels", "fused", "compiled by numba on first use, cached on disk")
    else:
        yield DoctorRow("kernels", "plain torch", "NORMSCOPE_KERNELS=reference is set, or numba failed")
    precision = choose_precision(config.precision, device)
    yield DoctorRow("precision", str(precision.dtype).removeprefix("torch."), precision.reason)
    if probe and device.type == "cpu":
        result = probe_bfloat16()
        hint = "" if result.ratio is None or result.ratio < 1.1 else "; try --precision bfloat16"
        yield DoctorRow("bfloat16", "no" if result.ratio is None else f"{result.ratio:.2f}x", result.message + hint)
    compiler = cpp_compiler()
    if compiler is None:
        yield DoctorRow("compile", "unavailable", "torch.compile needs a C++ compiler; none found")
    else:
        note = f"--compile uses {compiler} and takes about 30 s to warm up, which does not pay off in short runs"
        yield DoctorRow("compile", "on" if config.compile else "off", note)
    allocator = "keeps memory" if keep_freed_memory() else "default"
    yield DoctorRow("allocator", allocator, "freed blocks are reused in the next step")


@dataclass(frozen=True)
class TrainingCost:
    """The measured cost of a config.

    Args:
        parameters: Number of parameters.
        step_seconds: Median step time.
        tokens_per_second: Training throughput.
        total_seconds: Estimated time of all steps, without validation.
        memory: Peak memory in bytes, without the libraries.
        checkpoint: Size of one checkpoint in bytes.
        trained: Number of parameters that are trained.
        memory_parts: Bytes of weights, gradients, optimizer state and activations, by formula.
    """

    parameters: int
    step_seconds: float
    tokens_per_second: float
    total_seconds: float
    memory: int
    checkpoint: int
    trained: int
    memory_parts: dict[str, int]


def measure_cost(model_config: GPTConfig, config: TrainConfig, seconds: float = 4.0) -> TrainingCost:
    """Time at least three real steps on random tokens; raises if the run needs too much memory."""
    check_config(model_config, GPTConfig, "a GPT")
    check_config(config, TrainConfig, "a measurement")
    check_positive_number(seconds=seconds)
    check_memory(model_config, config)
    keep_freed_memory()
    before = current_memory()
    device = resolve_device(config.device)
    precision = choose_precision(config.precision, device)
    tokens = np.random.default_rng(0).integers(model_config.vocab_size, size=64 * (model_config.context + 1))
    batches = Batches(tokens, model_config.context, config.batch)
    times: list[float] = []
    can_adapt = device.type == "cpu" and not config.compile
    with preserve_rng(device), TorchThreads(adapt=can_adapt) as threads:  # as in a run
        torch.manual_seed(config.seed)
        model = GPT(model_config).to(device)
        set_trainable(model, config)
        trainer = Trainer(model, config, batches, precision.autocast(device))
        trainer.step()  # compile and warm up
        while len(times) < 3 or sum(times) < seconds:
            start = time.perf_counter()
            trainer.step()
            times.append(time.perf_counter() - start)
            threads.step(times[-1])
    step = statistics.median(times)
    tensors, _ = trainer.state()
    return TrainingCost(
        parameters=trainer.model.parameter_count(),
        step_seconds=step,
        tokens_per_second=config.batch * model_config.context / step,
        total_seconds=step * config.steps,
        memory=max(0, peak_memory() - before),
        checkpoint=sum(tensor.nbytes for group in tensors.values() for tensor in group.values()),
        trained=trained_parameters(model_config, config),
        memory_parts=describe_memory(model_config, config),
    )


@dataclass(frozen=True)
class DoctorReport:
    """The machine, what a run would use of it, and the measured cost of a config.

    Args:
        machine, choices: Rows of the report.
        preset: Name of the model preset, or format of the checkpoint.
        model, train: The config that was measured.
        cost: Measured time and memory.
    """

    machine: list[DoctorRow]
    choices: list[DoctorRow]
    preset: str
    model: GPTConfig
    train: TrainConfig
    cost: TrainingCost


def doctor(
    *,
    init_from: str | Path | None = None,
    recipe: str | None = None,
    depth: int | None = None,
    preset: str | None = None,
    vocab_size: int | None = None,
    context: int | None = None,
    seconds: float = 4.0,
    progress: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext(),
    **settings: Any,
) -> DoctorReport:
    """Describe the machine and measure the time and memory of a config, like `normscope doctor`.

    Args:
        init_from, recipe, depth, preset, vocab_size, context: See `train`.
        seconds: Duration of the measurement.
        progress: Context manager around each slow part, given its name.
        settings: Fields of `TrainConfig`: batch, micro_batch, device, precision, lora, ...
    """
    check_positive_number(seconds=seconds)
    shorter = {} if context is None else {"context": context}
    if init_from is None:
        chosen = lookup_recipe(recipe or "dial", depth, preset=preset, vocab_size=vocab_size)
        name, model = (
            chosen.preset,
            build_preset(chosen.preset, **{**chosen.model, "vocab_size": chosen.vocab_size, **shorter}),
        )
    else:
        given = {"recipe": recipe, "depth": depth, "preset": preset, "vocab_size": vocab_size}
        source = read_source(init_from)
        chosen = finetuning_recipe(init_from, given, settings.get("lora"), None)
        name, model = source.format, source_config(source, shorter)
    config = TrainConfig(**{**chosen.train, **settings})
    machine = list(describe_machine(Path.cwd()))
    with progress("probing bfloat16"):
        choices = list(describe_choices(config))
    with progress("timing training steps"):
        cost = measure_cost(model, config, seconds)
    return DoctorReport(machine, choices, name, model, config, cost)


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
