"""Forward passes with gradients on, under no_grad and in inference mode: how long they take, and the memory for it."""

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
TURNS = 15


def relative_times(model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """How long a forward pass takes in each mode, as a share of grad mode's."""
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(TURNS):  # in turns, so that a machine that slows down does so for all
        for mode, enter in MODES.items():
            with enter():
                start = time.perf_counter()
                model(tokens)
                seconds[mode].append(time.perf_counter() - start)
    # Whatever else the machine does can only add to a time, so the least says most.
    return {mode: min(seconds[mode]) / min(seconds["grad"]) for mode in MODES}


def relative_peaks(model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """The most memory that a forward pass has at a time, parameters left out, as a share of grad mode's."""
    peaks = {}
    for mode, enter in MODES.items():
        with enter():
            peaks[mode] = _peak(lambda: model(tokens))
    return {mode: peaks[mode] / peaks["grad"] for mode in MODES}


def _peak(run: Callable[[], Tensor]) -> int:
    """Bytes that torch has asked for and not yet given back, at most: its profiler notes every piece of memory."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler would write to the terminal when it starts
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    del result  # alive until here: what a pass leaves is part of what it needs
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    pieces = [event for event in events if event.get("name") == "[memory]"]
    now = most = 0
    for piece in sorted(pieces, key=lambda event: float(event["ts"])):
        now += int(piece["args"]["Bytes"])  # negative where a piece is given back
        most = max(most, now)
    return most


def relative_kept(model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """What is still held once a forward pass is done, as a share of grad mode's: logits, and all that autograd kept."""
    there_before = {tensor.untyped_storage().data_ptr() for tensor in (tokens, *model.parameters(), *model.buffers())}
    kept: dict[str, int] = {}
    for mode, enter in MODES.items():
        memory: dict[int, int] = {}

        def note(tensor: Tensor, memory: dict[int, int] = memory) -> Tensor:
            memory[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with enter(), saved_tensors_hooks(note, lambda tensor: tensor):
            note(model(tokens))
        kept[mode] = sum(size for place, size in memory.items() if place not in there_before)
    return {mode: kept[mode] / kept["grad"] for mode in MODES}
