"""What a rank really keeps and sends: tensors counted in a training step, bytes counted by its TCP connections."""

import os
import socket
import stat
import struct
import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from normscope.blocks.block import Block
from normscope.data.batches import Batches
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import preset
from normscope.runs.initial_weights import set_trainable
from normscope.runtime.ranks import Ranks
from normscope.training.config import TrainConfig
from normscope.training.trainer import Trainer
from tests.support import safe_bfloat16

STEPS = 2
_TCP_INFO, _BYTES_ACKED = 11, 120  # of Linux: bytes acknowledged and bytes received, without headers


@dataclass(frozen=True)
class Case:
    """A training to be measured."""

    preset: str
    parallel: str
    settings: dict[str, Any]
    model: dict[str, Any]

    def config(self) -> GPTConfig:
        sizes = {"vocab_size": 301, "context": 32, "depth": 2, "width": 64, "heads": 2}
        return preset(self.preset, **{**sizes, **self.model})

    def train(self) -> TrainConfig:
        settings = {"batch": 8, "precision": "float32", "device": "cpu", **self.settings}
        return TrainConfig(steps=9, parallel=self.parallel, **settings)  # type: ignore[arg-type]


@dataclass
class Measured:
    """Bytes of a rank: tensors in a step, and what it sent and received per step.

    Args:
        gathered: Parameters that are whole while a block is being computed.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    kept: int = 0
    gathered: int = 0
    sent: float = 0.0
    received: float = 0.0


def measure_all(ranks: Ranks, cases: list[Case]) -> list[Measured]:
    with safe_bfloat16():
        return [_measure(case, ranks) for case in cases]


def _measure(case: Case, ranks: Ranks) -> Measured:
    torch.manual_seed(0)
    model_config, config = case.config(), case.train()
    model = GPT(model_config)
    set_trainable(model, config)
    tokens = np.random.default_rng(0).integers(model_config.vocab_size, size=9 * config.batch * model_config.context)
    half = partial(torch.autocast, "cpu", torch.bfloat16) if config.precision == "bfloat16" else nullcontext
    trainer = Trainer(model, config, Batches(tokens, model_config.context, config.batch), half, ranks)
    trainer.warm_up_reducer()
    trainer.step()  # optimizer state exists from here on
    found = Measured()
    _watch(trainer, found)
    before = _traffic()
    for _ in range(STEPS):
        trainer.step()
    found.sent, found.received = ((b - a) / STEPS for a, b in zip(before, _traffic(), strict=True))
    found.weights = storage_bytes([*map(_local, model.parameters()), *model.buffers()])
    states = [state for optimizer in trainer.optimizer._optimizers for state in optimizer.state.values()]
    found.optimizer = storage_bytes(tensor for state in states for tensor in state.values())
    return found


def _watch(trainer: Trainer, found: Measured) -> None:
    """Count what exists after each forward pass, before each update, and inside of a block."""
    model, compute, step = trainer.model, trainer.parallel.loss, trainer.optimizer.step

    def loss(share: float, *batch: Tensor) -> Tensor:
        result, kept = run_and_keep(lambda: compute(share, *batch))
        found.kept = max(found.kept, kept_besides(kept, model))
        return result

    def update(lr_scale: float) -> None:
        gradients = [_local(weight.grad) for weight in model.parameters() if weight.grad is not None]
        found.gradients = storage_bytes(gradients)
        step(lr_scale)

    def count_whole(*_: Any) -> None:
        whole = storage_bytes(weight for weight in model.parameters() if not hasattr(weight, "full_tensor"))
        found.gathered = max(found.gathered, whole)

    trainer.parallel.loss = loss  # type: ignore[method-assign]
    trainer.optimizer.step = update  # type: ignore[method-assign]
    for block in model.blocks:
        assert isinstance(block, Block)
        block.mlp.register_forward_pre_hook(count_whole)


class _Box:
    """Lives as long as autograd keeps its tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def run_and_keep(work: Callable[[], Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The result of a forward pass, and the tensors that it keeps for the backward pass after it has ended."""
    kept: weakref.WeakSet[_Box] = weakref.WeakSet()

    def note(tensor: Tensor) -> _Box:
        box = _Box(tensor)
        kept.add(box)
        return box

    with torch.autograd.graph.saved_tensors_hooks(note, lambda box: box.tensor):
        result = work()
    return result, [box.tensor for box in kept]


def kept_besides(kept: Iterable[Tensor], model: GPT) -> int:
    """Bytes of tensors that are not those of parameters or buffers."""
    own = {_address(_local(tensor)) for tensor in (*model.parameters(), *model.buffers())}
    return storage_bytes(tensor for tensor in kept if _address(tensor) not in own)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages of tensors, each counted once."""
    return sum({_address(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _traffic() -> tuple[int, int]:
    """Bytes that this process has sent and received over TCP when all ranks are idle, without headers of TCP."""
    dist.barrier()
    sent = received = 0
    for name in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the folder itself, which is closed by now
            if stat.S_ISSOCK(os.fstat(name).st_mode):
                one_sent, one_received = _traffic_of(name)
                sent, received = sent + one_sent, received + one_received
    dist.barrier()
    return sent, received


def _traffic_of(descriptor: int) -> tuple[int, int]:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.type != socket.SOCK_STREAM or connection.family == socket.AF_UNIX:
            return 0, 0
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
    sent, received = struct.unpack_from("QQ", info, _BYTES_ACKED)
    return sent, received
