"""Who ran: kernels that note their name, and the number of their threads if there are several."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from normscope.ops.threads import ThreadPool


def recorded(monkeypatch: pytest.MonkeyPatch, loops: list[tuple[str, ModuleType, str]]) -> list[str]:
    """The list that each of the kernels (what to call it, its module and its name there) writes into when it runs."""
    calls: list[str] = []

    def recording(label: str, loop: Callable[..., Any]) -> Callable[..., Any]:
        def run(pool: ThreadPool, *arguments: Any) -> None:
            calls.append(f"{label} by {pool[0]}" if pool[0] > 1 else label)
            loop(pool, *arguments)

        return run

    for label, module, name in loops:
        monkeypatch.setattr(module, name, recording(label, getattr(module, name)))
    return calls
