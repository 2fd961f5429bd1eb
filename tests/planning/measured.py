"""What a rank really keeps and sends: tensors counted in a training step, bytes counted by its TCP connections."""

import json
import os
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from normscope.data.batches import Batches
from normscope.models.config_json import config_from_json, config_to_json
from normscope.models.gpt import GPT, GPTConfig
from normscope.runs.initial_weights import set_trainable
from normscope.runtime.ranks import Ranks
from normscope.training.config import TrainConfig
from normscope.training.trainer import Trainer
from tests.training.forked import finish, start_forked

STEPS = 2
_TCP_INFO, _BYTES_ACKED = 11, 120  # of Linux: bytes acknowledged and bytes received, without headers


def measure_ranks(folder: Path, model: GPTConfig, train: TrainConfig, ranks: int) -> list[dict[str, int]]:
    """Train on this many gloo ranks; what each of them kept and sent in a step."""
    words = json.dumps([config_to_json(model), train.to_json()])
    started = [start_forked(_measure, str(folder), words, rank, ranks) for rank in range(ranks)]
    for process in started:
        finish(process)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def _measure(folder: str, words: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    model_json, train_json = json.loads(words)
    model_config, config = config_from_json(model_json), TrainConfig.from_json(train_json)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    found = _train(model_config, config, Ranks(rank, size))
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _train(model_config: GPTConfig, config: TrainConfig, ranks: Ranks) -> dict[str, int]:
    torch.manual_seed(0)
    model = GPT(model_config)
    set_trainable(model, config)
    tokens = np.random.default_rng(0).integers(model_config.vocab_size, size=9 * config.batch * model_config.context)
    batches = Batches(tokens, model_config.context, config.batch)
    half = partial(torch.autocast, "cpu", torch.bfloat16) if config.precision == "bfloat16" else nullcontext
    trainer = Trainer(model, config, batches, half, ranks)
    trainer.settle()
    trainer.step()  # optimizer state exists from here on
    found: dict[str, int] = {}
    _count_in_step(trainer, found)
    dist.barrier()
    sent, received = tcp_bytes()
    for _ in range(STEPS):
        trainer.step()
    dist.barrier()
    after_sent, after_received = tcp_bytes()
    state = [value for optimizer in trainer.optimizer._optimizers for value in optimizer.state.values()]
    return found | {
        "weights": storage_bytes([*map(_local, model.parameters()), *model.buffers()]),
        "optimizer": storage_bytes(tensor for each in state for tensor in each.values()),
        "sent": (after_sent - sent) // STEPS,
        "received": (after_received - received) // STEPS,
    }


def _count_in_step(trainer: Trainer, found: dict[str, int]) -> None:
    """Count activations after each forward pass, gradients before the update, whole parameters inside of a block."""
    model, compute, step = trainer.model, trainer.parallel.loss, trainer.optimizer.step

    def loss(share: float, *batch: Tensor) -> Tensor:
        result, kept = kept_after(lambda: compute(share, *batch))
        whole = {tensor.untyped_storage().data_ptr() for tensor in (*map(_local, model.parameters()), *model.buffers())}
        found["activations"] = storage_bytes(t for t in kept if t.untyped_storage().data_ptr() not in whole)
        return result

    def update(lr_scale: float) -> None:
        gradients = [_local(weight.grad) for weight in model.parameters() if weight.grad is not None]
        found["gradients"] = storage_bytes(gradients)
        step(lr_scale)

    def count_whole(*_: Any) -> None:
        whole = [weight for weight in model.parameters() if not hasattr(weight, "full_tensor")]
        found["gathered"] = max(found.get("gathered", 0), storage_bytes(whole))

    trainer.parallel.loss = loss  # type: ignore[method-assign]
    trainer.optimizer.step = update  # type: ignore[method-assign]
    for block in model.blocks:
        block.mlp.register_forward_pre_hook(count_whole)


class _Kept:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def kept_after(work: Callable[[], Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The result of a forward pass, and the tensors that it keeps for the backward pass after it has ended."""
    import weakref

    kept: weakref.WeakSet[_Kept] = weakref.WeakSet()

    def note(tensor: Tensor) -> _Kept:
        box = _Kept(tensor)
        kept.add(box)
        return box

    with torch.autograd.graph.saved_tensors_hooks(note, lambda box: box.tensor):
        result = work()
    return result, [box.tensor for box in kept]


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages of tensors, each counted once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def tcp_bytes() -> tuple[int, int]:
    """Bytes that this process has sent and received over its TCP connections, without headers of TCP."""
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.type != socket.SOCK_STREAM or connection.family == socket.AF_UNIX:
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
        except OSError:  # another kind of file
            continue
        acked, got = struct.unpack_from("QQ", info, _BYTES_ACKED)
        sent, received = sent + acked, received + got
    return sent, received
