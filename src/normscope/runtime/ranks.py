"""The ranks of torch.distributed: the processes that train one run together.

torchrun starts them and tells each its rank. Only rank 0 writes metrics and shows progress; every rank computes a part
of each batch.
"""

import atexit
import gc
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from normscope._version import __version__
from normscope.errors import ConfigError, RankError
from normscope.runtime import torchrun

_CONTROL_TIMEOUT = timedelta(days=7)
"""How long ranks wait for what only rank 0 does, such as tokenizing. If it dies meanwhile, they notice at once."""
_JOIN_TIMEOUT = timedelta(minutes=10)
"""How long ranks wait for each other at the start."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that train a run; the default is a process that trains alone.

    Args:
        rank: Number of this process.
        size: Number of processes.
        local_rank: Number of this process on its machine.
        local_size: Number of processes on this machine.
        control_group: Process group of CPU tensors, for waiting for rank 0.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    control_group: Any = None

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes the run folder and shows progress."""
        return self.rank == 0

    def part(self, count: int) -> slice:
        """This rank's part of `count` items in a row. Parts differ by one item at most; rank 0 never has the fewest.

        >>> [Ranks(rank, 3).part(8) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
        """
        return slice(-(-self.rank * count // self.size), -(-(self.rank + 1) * count // self.size))

    def sum(self, *values: float) -> list[float]:
        """The sum over all ranks of each value, in float64."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        with rank_errors():
            dist.all_reduce(total, group=self.control_group)
        return cast(list[float], total.tolist())

    def any(self, value: bool) -> bool:
        """Whether it is true on any rank."""
        return self.sum(float(value))[0] > 0

    def broadcast(self, value: int | None) -> int | None:
        """Rank 0's value, on all ranks."""
        if self.size == 1:
            return value
        shared = torch.tensor([-1 if value is None else value])
        with rank_errors():
            dist.broadcast(shared, 0, group=self.control_group)
        return None if shared.item() < 0 else int(shared.item())

    def from_main(self, work: Callable[[], str]) -> str:
        """Run a function that returns a text on rank 0 only, and return the text on all ranks.

        If it fails, rank 0 raises its error, and the others a RankError.
        """
        if self.size == 1:
            return work()
        text = b""
        try:
            text = work().encode() if self.is_main else b""
        finally:  # also after an error, for which the others wait
            length = self.broadcast(len(text))
        if not length:
            raise RankError("rank 0 failed: see its error", is_echo=True)
        data = torch.frombuffer(bytearray(text or bytes(length)), dtype=torch.uint8)
        with rank_errors():
            dist.broadcast(data, 0, group=self.control_group)
        return bytes(data.tolist()).decode()

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks, in their order."""
        if self.size == 1:
            return [text]
        data = bytearray(text.encode())
        lengths = [int(length) for length in self._gather(torch.tensor([len(data)]))]
        data += bytes(1 + max(lengths) - len(data))  # of equal length, and never empty
        found = self._gather(torch.frombuffer(data, dtype=torch.uint8))
        return [bytes(each[:length].tolist()).decode() for each, length in zip(found, lengths, strict=True)]

    def _gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        with rank_errors():
            dist.all_gather(found, tensor, group=self.control_group)
        return found

    def differences(self, settings: Mapping[str, str]) -> list[str]:
        """What differs between the ranks: one text per setting, the same on all ranks."""
        return describe_differences([json.loads(text) for text in self.gather(json.dumps(settings))])

    @contextmanager
    def fail_together(self, problem: str) -> Iterator[None]:
        """Context manager: if its block fails on a rank, the others raise a RankError at the end of theirs."""
        failed = True
        try:
            yield
            failed = False
        finally:
            others_failed = self.any(failed) and not failed
        if others_failed:
            raise RankError(f"{problem}: see the error of another rank", is_echo=True)

    def barrier(self) -> None:
        """Wait for all ranks, however long one of them works."""
        self.sum(0.0)  # a broadcast would not let rank 0 wait for the others


def describe_differences(by_rank: Sequence[Mapping[str, str]]) -> list[str]:
    """Describe the settings that are not the same on all ranks.

    >>> describe_differences([{"torch": "2.13", "os": "x"}, {"torch": "2.12", "os": "x"}, {"torch": "2.13", "os": "x"}])
    ['torch is 2.13 on rank 0, 2 and 2.12 on rank 1']
    """
    texts = []
    for name in by_rank[0]:
        ranks_of: dict[str, list[int]] = {}
        for rank, settings in enumerate(by_rank):
            ranks_of.setdefault(settings.get(name, "unknown"), []).append(rank)
        if len(ranks_of) > 1:
            texts.append(f"{name} is {' and '.join(f'{value} on {_names(of)}' for value, of in ranks_of.items())}")
    return texts


def _names(ranks: Sequence[int], most: int = 8) -> str:
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank {', '.join(map(str, ranks[:most]))}{more}"


ALONE = Ranks()
_joined: Ranks | None = None
_joined_group: Any = None
"""The process group of `_joined`: a script may replace its own."""


def join_ranks() -> Ranks:
    """Join the other processes that torchrun started; without torchrun, a process is alone.

    A process group that exists already is used. Ours ends with the process.
    """
    global _joined, _joined_group
    if not (dist.is_available() and (dist.is_initialized() or torchrun.is_launched())):
        return ALONE
    if _joined is None or _joined_group is not dist.group.WORLD:
        local = int(os.environ.get("LOCAL_RANK") or 0)
        with rank_errors():
            if not dist.is_initialized():
                backend = "gloo"
                if local < torch.cuda.device_count():
                    torch.cuda.set_device(local)
                    backend = "cpu:gloo,cuda:nccl"
                store, rank, size = next(rendezvous("env://", timeout=_JOIN_TIMEOUT))
                own = dist.distributed_c10d.PrefixStore(_agree_on_name(store, rank, size), store)
                dist.init_process_group(backend, store=own, rank=rank, world_size=size)
                torchrun.first_to_say = partial(_is_first, own)
                atexit.register(_leave)
            control_group = dist.new_group(backend="gloo", timeout=_CONTROL_TIMEOUT)
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        torchrun.wait_for_report = partial(_wait_for_report, control_group)
        ranks = Ranks(dist.get_rank(), dist.get_world_size(), local, local_size, control_group)
        if different := ranks.differences({"normscope": __version__, "torch": torch.__version__}):
            raise ConfigError(
                f"the ranks have different versions: {'; '.join(different)}\nfix: install the same on all machines"
            )
        _joined, _joined_group = ranks, dist.group.WORLD
    return _joined


def joined_ranks() -> Ranks:
    """The ranks that this process has joined."""
    return _joined or ALONE


def _agree_on_name(store: Any, rank: int, size: int) -> str:
    """A name for this start of the ranks, made by rank 0.

    torchrun gives all starts of a job the same store, in which gloo would find the addresses of processes that have
    been killed. So each rank greets with a new word, and waits for the answer to this word.
    """
    word = uuid.uuid4().hex
    if rank:
        store.set(f"normscope/hello/{rank}", word)
        try:
            store.wait([f"normscope/answer/{word}"], _JOIN_TIMEOUT)
        except dist.DistStoreError as error:
            raise _absent([0]) from error
        name: str = store.get(f"normscope/answer/{word}").decode()
        store.set(f"normscope/ready/{name}/{rank}", "")
        return name
    answered, waiting = set[bytes](), set(range(1, size))
    deadline = time.monotonic() + _JOIN_TIMEOUT.total_seconds()
    while waiting:
        if time.monotonic() > deadline:
            raise _absent(sorted(waiting))
        for other in list(waiting):
            if store.check([f"normscope/hello/{other}"]):
                hello = store.get(f"normscope/hello/{other}")
                if hello not in answered:  # perhaps that of a process that is gone
                    store.set(f"normscope/answer/{hello.decode()}", word)
                    answered.add(hello)
            if store.check([f"normscope/ready/{word}/{other}"]):
                waiting.remove(other)
        time.sleep(0.005)
    return word


def _absent(ranks: Sequence[int]) -> RankError:
    return RankError(
        f"{_names(ranks)} did not answer within {_JOIN_TIMEOUT}\nfix: see what its machine shows; for torchrun "
        "--nnodes MIN:MAX, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all machines"
    )


def _wait_for_report(group: Any) -> None:
    """Wait until the rank that shows an error is gone: torchrun ends all ranks as soon as one of them exits."""
    with suppress(RuntimeError):
        dist.all_reduce(torch.zeros(1), group=group)  # which that rank never joins


def _is_first(store: Any, message: str) -> bool:
    """Whether no other rank has claimed a message in the store, which torchrun keeps when ranks end."""
    try:
        first: bool = store.add(f"normscope/said/{hashlib.sha256(message.encode()).hexdigest()}", 1) == 1
    except RuntimeError:  # the store is gone
        return True
    return first


def check_device(device: torch.device, ranks: Ranks) -> None:
    """Raise unless each rank can have a device of its own, or all compute on the CPU."""
    if ranks.size == 1 or device.type == "cpu":
        return
    found = torch.cuda.device_count()
    if device.type != "cuda":
        problem, fix = f"device={str(device)!r}: several ranks train on CPUs or NVIDIA GPUs", "--device cpu"
    elif ":" in str(device):
        problem, fix = f"device={str(device)!r} is one device, but each rank takes its own", "--device cuda"
    elif ranks.local_rank >= found:
        problem, fix = (
            f"{ranks.local_size} ranks on a machine with {found} GPUs",
            f"at most {found} ranks, or --device cpu",
        )
    else:
        return
    raise ConfigError(f"{problem}\nfix: {fix}")


def _leave() -> None:
    gc.collect()  # torch ends the process with an abort if models with hooks outlive the group
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def rank_errors() -> Iterator[None]:
    """Turn the errors of a lost connection into a RankError."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise RankError(
            "lost the connection to another rank: it failed or was killed\n"
            f"({str(error).splitlines()[0]:.160})\n"
            "fix: see its error; saved checkpoints are intact, and `normscope resume` continues from the last one"
        ) from error


def is_lost_connection(error: BaseException) -> bool:
    """Whether an error of torch says that another rank is gone."""
    if isinstance(error, dist.DistError if dist.is_available() else ()):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("gloo" in text or "NCCL" in text or "onnection closed" in text)
