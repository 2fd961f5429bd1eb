"""Time and memory of forward passes with gradients enabled, under no_grad and in inference mode."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

MODES: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
ROUNDS = 15


def relative_times(model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """Time of a forward pass in each mode, relative to grad mode."""
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(ROUNDS):  # alternate, so that a slowdown affects all modes
        for mode, enter in MODES.items():
            with enter():
                start = time.perf_counter()
                model(tokens)
                seconds[mode].append(time.perf_counter() - start)
    # Other load only adds time, so the minimum is the best estimate.
    return {mode: min(seconds[mode]) / min(seconds["grad"]) for mode in MODES}


def relative_peaks(model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """Peak memory of a forward pass without parameters, relative to grad mode."""
    peaks = {}
    for mode, enter in MODES.items():
        with enter():
            peaks[mode] = _peak(lambda: model(tokens))
    return {mode: peaks[mode] / peaks["grad"] for mode in MODES}


def _peak(run: Callable[[], Tensor]) -> int:
    """Peak of the bytes allocated by torch, from its profiler."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence the profiler
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    del result  # alive until here: the output is part of the memory
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    allocations = [event for event in events if event.get("name") == "[memory]"]
    current = peak = 0
    for allocation in sorted(allocations, key=lambda event: float(event["ts"])):
        current += int(allocation["args"]["Bytes"])  # negative when freed
        peak = max(peak, current)
    return peak


def relative_kept(model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """Memory held after a forward pass, relative to grad mode: logits, and tensors saved by autograd."""
    existing = {tensor.untyped_storage().data_ptr() for tensor in (tokens, *model.parameters(), *model.buffers())}
    kept: dict[str, int] = {}
    for mode, enter in MODES.items():
        memory: dict[int, int] = {}

        def record(tensor: Tensor, memory: dict[int, int] = memory) -> Tensor:
            memory[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with enter(), saved_tensors_hooks(record, lambda tensor: tensor):
            record(model(tokens))
        kept[mode] = sum(size for pointer, size in memory.items() if pointer not in existing)
    return {mode: kept[mode] / kept["grad"] for mode in MODES}
