"""Forward passes with gradients on, under no_grad and in inference mode: how long they take, and what they hold."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

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


def relative_memory(model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """What is held once a forward pass is done, as a share of grad mode's: logits, and all that autograd has kept."""
    there_before = {tensor.untyped_storage().data_ptr() for tensor in (tokens, *model.parameters(), *model.buffers())}
    held: dict[str, int] = {}
    for mode, enter in MODES.items():
        memory: dict[int, int] = {}

        def note(tensor: Tensor, memory: dict[int, int] = memory) -> Tensor:
            memory[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with enter(), saved_tensors_hooks(note, lambda tensor: tensor):
            note(model(tokens))
        held[mode] = sum(size for place, size in memory.items() if place not in there_before)
    return {mode: held[mode] / held["grad"] for mode in MODES}
