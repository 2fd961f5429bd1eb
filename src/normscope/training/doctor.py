"""What a machine has, what a run would use of it and why, and what a given config costs: measured, not guessed."""

import os
import platform
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from normscope._version import __version__
from normscope.blocks.checks import check_config
from normscope.checks import check_positive_number
from normscope.data.batches import Batches
from normscope.models.gpt import GPT, GPTConfig
from normscope.ops.kernel_mode import select_backend
from normscope.runtime.adaptive_threads import TorchThreads, thread_mode
from normscope.runtime.allocator import hold_memory
from normscope.runtime.compiler import cpp_compiler
from normscope.runtime.devices import resolve_device
from normscope.runtime.machine_load import machine_load
from normscope.runtime.memory import memory_now, memory_peak, memory_sizes
from normscope.runtime.precision import choose_precision, probe_bfloat16
from normscope.training.config import TrainConfig
from normscope.training.memory_estimate import refuse_too_large
from normscope.training.trainer import Trainer


@dataclass(frozen=True)
class Line:
    """One finding: what it is about, what there is, and what follows from it."""

    about: str
    what: str
    why: str = ""


def machine(folder: Path) -> Iterator[Line]:
    """What there is, as far as it matters for a run in this folder."""
    yield Line("normscope", __version__, f"Python {platform.python_version()}, torch {torch.__version__}")
    yield Line("processor", processor(), f"{os.cpu_count()} cores")
    yield _load()
    yield Line("memory", _memory())
    free = shutil.disk_usage(folder).free
    yield Line("disk", f"{free / 1e9:.1f} GB free", f"in {folder.resolve()}")


def choices(config: TrainConfig, *, probe: bool = True) -> Iterator[Line]:
    """What a run would use, and why; the probe takes a few seconds."""
    device = resolve_device(config.device)
    yield Line(
        "device", str(device), "an accelerator was found" if device.type != "cpu" else "no accelerator was found"
    )
    yield Line("threads", str(torch.get_num_threads()), _threads())
    yield Line("kernels", *_kernels())
    precision = choose_precision(config.precision, device)
    yield Line("precision", str(precision.dtype).removeprefix("torch."), precision.why)
    if probe and device.type == "cpu":
        tried = probe_bfloat16()
        advice = "" if tried.ratio is None or tried.ratio < 1.1 else "; --precision bfloat16 may pay"
        yield Line("bfloat16", "no" if tried.ratio is None else f"{tried.ratio:.2f}x", tried.words + advice)
    compiler = cpp_compiler()
    if compiler is None:
        yield Line("compile", "not possible", "torch.compile needs a C++ compiler, and none was found")
    else:
        why = f"{compiler} is there for --compile; it takes half a minute to warm up, which short runs do not win back"
        yield Line("compile", "on" if config.compile else "off", why)
    yield Line("allocator", "holds memory" if hold_memory() else "as it is", "freed blocks are kept for the next step")


@dataclass(frozen=True)
class Cost:
    """What a config needs.

    Args:
        parameters: how many numbers the model learns.
        step_seconds: the median time of a step.
        tokens_per_second: how fast it reads.
        total_seconds: of all the steps, without validation.
        memory: bytes at the peak, beyond what the libraries take by themselves.
        checkpoint: bytes of one checkpoint.
    """

    parameters: int
    step_seconds: float
    tokens_per_second: float
    total_seconds: float
    memory: int
    checkpoint: int


def measure(model_config: GPTConfig, config: TrainConfig, seconds: float = 4.0) -> Cost:
    """Take real steps on random tokens for so many seconds, three at least; what cannot fit is refused before."""
    check_config(model_config, GPTConfig, "a GPT")
    check_config(config, TrainConfig, "a measurement")
    check_positive_number(seconds=seconds)
    refuse_too_large(model_config, config)
    hold_memory()
    before = memory_now()
    device = resolve_device(config.device)
    precision = choose_precision(config.precision, device)
    torch.manual_seed(config.seed)
    model = GPT(model_config).to(device)
    tokens = np.random.default_rng(0).integers(model_config.vocab_size, size=64 * (model_config.context + 1))
    batches = Batches(tokens, model_config.context, config.batch)
    trainer = Trainer(model, config, batches, precision.autocast(device))
    trainer.step()  # compiles and warms up
    times: list[float] = []
    can_adapt = device.type == "cpu" and not config.compile
    with TorchThreads(adapt=can_adapt) as threads:  # as in a run; nobody keeps these bits
        while len(times) < 3 or sum(times) < seconds:
            start = time.perf_counter()
            trainer.step()
            times.append(time.perf_counter() - start)
            threads.step(times[-1])
    step = statistics.median(times)
    tensors, _ = trainer.state()
    return Cost(
        parameters=model.parameter_count(),
        step_seconds=step,
        tokens_per_second=config.batch * model_config.context / step,
        total_seconds=step * config.steps,
        memory=max(0, memory_peak() - before),
        checkpoint=sum(tensor.nbytes for group in tensors.values() for tensor in group.values()),
    )


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> str:
    sizes = memory_sizes()
    if not {"MemAvailable", "MemTotal"} <= sizes.keys():
        return "unknown"
    return f"{sizes['MemAvailable'] / 1e9:.1f} of {sizes['MemTotal'] / 1e9:.1f} GB free"


def _load() -> Line:
    load = machine_load()
    if not load.is_busy or load.free is None:
        return Line("load", str(load))
    return Line("load", str(load), "busy: expect slower steps, and fewer threads while it lasts")


def _threads() -> str:
    adapts = "fewer while the machine is busy" if thread_mode() == "adaptive" else "fixed by NORMSCOPE_THREADS"
    return f"torch's own choice, which OMP_NUM_THREADS changes; {adapts}"


def _kernels() -> tuple[str, str]:
    if select_backend(torch.empty(1)) == "fused":
        return "fused", "compiled by numba when first used, kept on disk"
    return "plain torch", "NORMSCOPE_KERNELS=reference is set, or numba failed"
