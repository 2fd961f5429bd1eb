"""Register the cases of the corpus: training loops with one planted fault each, and healthy ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.causes import CAUSES

Half = Literal["tuning", "held_out"]
Kind = Literal["plain", "hard", "ordinary", "tricky"]


@dataclass(frozen=True)
class Case:
    """A training loop as people write them.

    Args:
        name: name of the function that builds it.
        half: the thresholds of findings are chosen on the tuning half; the held-out half is only measured.
        family: the file it is in.
        kind: a plain or hard fault, or an ordinary or tricky healthy setup.
        make: builds model and run; random numbers come from torch's global generator, which is seeded before.
        cause: what is wrong, a key of `CAUSES`; "" if nothing is.
        modules: the modules that a finding may name.
    """

    name: str
    half: Half
    family: str
    kind: Kind
    make: Callable[[], Setup]
    cause: str = ""
    modules: tuple[str, ...] = ()


_CASES: list[Case] = []


def planted(cause: str, *modules: str, hard: bool = False) -> Callable[[Callable[[], Setup]], Callable[[], Setup]]:
    """Register a fault. Its docstring says what is wrong, and where such faults were reported.

    Args:
        cause: a key of `CAUSES`.
        modules: names of modules that a finding may name as the place; "" is the whole model. By default only "".
        hard: whether the fault leaves few traces in a few steps, so that an expert would need time to find it too.
    """
    assert cause in CAUSES, cause
    return _adding("hard" if hard else "plain", cause, modules or ("",))


def ordinary(function: Callable[[], Setup]) -> Callable[[], Setup]:
    """Register a healthy setup of an everyday kind: no warning or error may be reported."""
    return _adding("ordinary")(function)


def tricky(function: Callable[[], Setup]) -> Callable[[], Setup]:
    """Register a healthy setup which looks like a fault: its docstring says which, and why it is none."""
    return _adding("tricky")(function)


def _adding(
    kind: Kind, cause: str = "", modules: tuple[str, ...] = ()
) -> Callable[[Callable[[], Setup]], Callable[[], Setup]]:
    def add(function: Callable[[], Setup]) -> Callable[[], Setup]:
        *_, half, family = function.__module__.split(".")
        assert half in ("tuning", "held_out")
        _CASES.append(Case(function.__name__, half, family, kind, function, cause, modules))  # type: ignore[arg-type]
        return function

    return add


def cases(half: Half) -> Iterator[Case]:
    """All cases of a half."""
    for file in sorted((Path(__file__).parent / half).glob("[a-z]*.py")):
        import_module(f"tests.diagnostics.corpus.{half}.{file.stem}")
    yield from (case for case in _CASES if case.half == half)
