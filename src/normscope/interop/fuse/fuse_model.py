"""`fuse`: every module of a model is judged first, and only then are the changes made."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from normscope.blocks.norm.functional import rms_norm
from normscope.errors import DtypeError
from normscope.interop.fuse.candidates import CandidateFinder
from normscope.interop.fuse.change import AppliedChange, ClassChange
from normscope.interop.fuse.report import FusedModule, FuseReport, Skipped


def fuse(model: nn.Module) -> FuseReport:
    """Swap the norms of any model for fused ones that compute the same, in place, until `undo()`.

    torch.nn's norms become normscope's layers of the same name. A norm of another library is recognised by what it
    computes: RMSNorm or LayerNorm over the last axis, with the gain as it is or plus one. So are activations that a
    library writes out step by step, such as GPT-2's GELU. Each swap is proven first, on copies with random values:
    results, gradients and running statistics agree to a few roundings, in training and in eval mode. What cannot be
    proven is left, and the report says why.

    The modules stay the same objects with the same parameters, buffers and hooks: only their class changes. Optimisers
    that were made before go on working, and the state_dict does not change.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.LocalResponseNorm(2))
    >>> report = fuse(model)
    >>> report
    fused 1 of 2 norms
      LayerNorm -> normscope.LayerNorm
        1
    left 1
      LocalResponseNorm: it is none of the norms that have a fused form
        3
    >>> report.undo()
    >>> type(model[1]) is nn.LayerNorm
    True
    """
    _check(model)
    changes: list[tuple[nn.Module, ClassChange, tuple[str, ...]]] = []
    left: list[Skipped] = []
    with _undisturbed():
        judge = CandidateFinder()
        for module, names in _places(model):
            verdict = judge.verdict(module)
            if isinstance(verdict, ClassChange):
                changes.append((module, verdict, names))
            elif verdict is not None:
                left.append(Skipped(names, type(module).__name__, verdict))
    swapped: list[FusedModule] = []
    applied: list[AppliedChange] = []
    for module, change, names in changes:
        swapped.append(FusedModule(names, type(module).__name__, change.text, change.what))
        applied.append(change.apply(module))
    return FuseReport(tuple(swapped), tuple(left), applied)


def _check(model: object) -> None:
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise DtypeError(f"fuse takes a model, but got the class {model.__name__}; make one of it first")
    if not isinstance(model, nn.Module):
        raise DtypeError(f"fuse takes a model, which is an nn.Module, but got {type(model).__name__}")


def _places(model: nn.Module) -> list[tuple[nn.Module, tuple[str, ...]]]:
    """Every module once, with all the names that it has in the model."""
    found: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        found.setdefault(module, []).append(name)
    return [(module, tuple(names)) for module, names in found.items()]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Trials that the rest of the program does not notice, whatever mode it is in."""
    rms_norm(torch.ones(1, 2, device="cpu"))  # if the kernels do not run on this machine, the notice comes here
    state = random.getstate()
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.inference_mode(False),  # this turns gradients on as well
            torch.autocast("cpu", enabled=False),
            torch.device("cpu"),
        ):
            yield
    finally:
        random.setstate(state)
