"""Ranks for tests: processes forked from the warm server, which meet as those of torchrun do."""

import os
import pickle
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from normscope.runtime.ranks import Ranks, join_ranks
from tests.training.forked import start_forked


def on_ranks(size: int, work: Callable[..., object], *arguments: object) -> list[Any]:
    """What `work(ranks, *arguments)` returns on each of so many ranks."""
    with tempfile.TemporaryDirectory(prefix="normscope-ranks-") as folder:
        processes = start_ranks(size, _save_result, folder, work, *arguments)
        for process in processes:
            process.join(250)
        problems = [path.read_text() for path in sorted(Path(folder).glob("*.txt"))]
        assert [process.exitcode for process in processes] == [0] * size, "\n".join(problems)
        return [pickle.loads((Path(folder) / f"{rank}.pickle").read_bytes()) for rank in range(size)]  # noqa: S301


def start_ranks(size: int, work: Callable[..., object], *arguments: object) -> list[BaseProcess]:
    """Start `work(ranks, *arguments)` on so many ranks."""
    port = free_port()
    return [start_forked(_as_rank, rank, size, port, work, *arguments) for rank in range(size)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _as_rank(rank: int, size: int, port: int, work: Callable[..., object], *arguments: object) -> None:
    become_rank(rank, size, port)
    work(join_ranks(), *arguments)


def become_rank(rank: int, size: int, port: int) -> None:
    """What torchrun tells a process."""
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",  # stay on this machine
    }


def _save_result(ranks: Ranks, folder: str, work: Callable[..., object], *arguments: object) -> None:
    try:
        result = work(ranks, *arguments)
    except BaseException:
        Path(folder, f"{ranks.rank}.txt").write_text(f"rank {ranks.rank}: {traceback.format_exc()}")
        raise
    Path(folder, f"{ranks.rank}.pickle").write_bytes(pickle.dumps(result))
