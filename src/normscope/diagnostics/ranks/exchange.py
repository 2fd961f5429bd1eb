"""Exchange texts with the other ranks through the key-value store of the process group, without waiting for long.

A collective would hang if a rank took no x-ray. Here a rank announces its x-ray, publishes what it found at the end,
and reads what others have published:

    open/RANK              the number of the x-ray that the rank takes now
    RANK/NUMBER/NAME       what it has published
    RANK/NUMBER/readers    how many have read it
"""

import itertools
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

import torch.distributed as dist

WAIT_SECONDS = 5.0
"""How long to wait for a rank that has announced an x-ray."""

GRACE_SECONDS = 1.0
"""How long to wait for a rank that has announced none. Ranks with a common backward pass announce before it."""

MAX_CHARACTERS = 4 << 20
"""Longer texts are not published: they would load the machine that holds the store."""

_POLL_SECONDS = 0.02
_PREFIX = "normscope/xray"
_numbers = itertools.count(1)


class RankExchange:
    """One exchange: announce, publish, read, wait for the readers, withdraw. A rank deletes only its own keys.

    Args:
        rank: this rank.
    """

    def __init__(self, rank: int) -> None:
        # A connection of its own, with a timeout of its own: torch itself may be waiting on the other.
        self._store = dist.group.WORLD.get_group_store().clone()  # type: ignore[union-attr]
        self._store.set_timeout(timedelta(seconds=GRACE_SECONDS))
        self._rank, self._number = rank, next(_numbers)
        self._keys: list[str] = []
        self._readers: set[int] = set()
        self._set(f"open/{rank}", str(self._number))

    def publish(self, texts: dict[str, str]) -> None:
        """Publish these texts for the other ranks, all at once."""
        for name, text in texts.items():
            self._set(f"{self._rank}/{self._number}/{name}", text)
        self._set(f"{self._rank}/{self._number}/ready", "")

    def wait_for(self, ranks: Iterable[int]) -> dict[int, int]:
        """Wait for what other ranks publish. Return the numbers of the x-rays of those that did."""
        waiting, found, start = {rank for rank in ranks if rank != self._rank}, dict[int, int](), time.monotonic()
        while waiting:
            passed = time.monotonic() - start
            for rank in sorted(waiting):
                number = self._number_of(rank)
                if number is not None:
                    self._readers.add(rank)
                if number is not None and self._has(f"{rank}/{number}/ready"):
                    found[rank] = number
                if rank in found or passed > (GRACE_SECONDS if number is None else WAIT_SECONDS):
                    waiting.remove(rank)
            if waiting:
                time.sleep(_POLL_SECONDS)
        return found

    def read(self, rank: int, number: int, name: str) -> str | None:
        """Read a text that a rank has published; None if it is gone."""
        try:
            text: str = self._store.get(f"{_PREFIX}/{rank}/{number}/{name}").decode()
        except RuntimeError:  # the store's timeout
            return None
        return text or None  # a key that is deleted meanwhile is empty

    def wait_for_readers(self, found: dict[int, int]) -> None:
        """Tell these ranks that they were read, and wait until the others have read this one."""
        for rank, number in found.items():
            self._store.add(f"{_PREFIX}/{rank}/{number}/readers", 1)
        own = f"{self._rank}/{self._number}/readers"
        self._keys.append(own)
        _wait_until(lambda: self._store.add(f"{_PREFIX}/{own}", 0) >= len(self._readers), WAIT_SECONDS)

    def withdraw(self) -> None:
        """Delete the keys of this rank."""
        for key in self._keys:
            self._store.delete_key(f"{_PREFIX}/{key}")
        self._keys.clear()

    def _set(self, key: str, text: str) -> None:
        self._store.set(f"{_PREFIX}/{key}", text)
        self._keys.append(key)

    def _has(self, key: str) -> bool:
        return bool(self._store.check([f"{_PREFIX}/{key}"]))

    def _number_of(self, rank: int) -> int | None:
        """Return the number of the x-ray that a rank takes now; None if it takes none."""
        key = f"{_PREFIX}/open/{rank}"
        try:
            number = self._store.get(key) if self._store.check([key]) else b""
        except RuntimeError:  # deleted in between
            return None
        return int(number) if number else None  # also empty if it was deleted in between


def _wait_until(is_done: Callable[[], bool], seconds: float) -> None:
    start = time.monotonic()
    while not is_done() and time.monotonic() - start < seconds:
        time.sleep(_POLL_SECONDS)
