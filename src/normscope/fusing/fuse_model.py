"""`fuse`: decide for every module first, then apply the changes."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from normscope.blocks.norm.functional import rms_norm
from normscope.errors import ArgumentTypeError
from normscope.fusing.candidates import CandidateFinder
from normscope.fusing.change import ClassChange
from normscope.fusing.report import FusedModule, FuseReport, Skipped


def fuse(model: nn.Module) -> FuseReport:
    """Replace the norms of any model in place by equivalent fused ones.

    torch.nn norms become the normscope layers of the same name. Norms of other libraries are recognized by what they
    compute: RMSNorm or LayerNorm over the last axis, with weight or weight + 1. Unfused activations, such as GPT-2's
    GELU, are recognized too. Each replacement is verified on copies with random parameters: outputs, gradients and
    running statistics agree to a few ulps, in train and eval mode. Anything else is skipped, with a reason in the
    report.

    Modules keep their identity, parameters, buffers and hooks; only their class changes. Existing optimizers and the
    state_dict stay valid. `undo()` on the report restores the classes.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.LocalResponseNorm(2))
    >>> report = fuse(model)
    >>> report
    fused 1 of 2 norms
      LayerNorm -> normscope.LayerNorm
        1
    skipped 1
      LocalResponseNorm: no fused version of this norm
        3
    >>> report.undo()
    >>> type(model[1]) is nn.LayerNorm
    True
    """
    _check(model)
    changes: list[tuple[nn.Module, ClassChange, tuple[str, ...]]] = []
    skipped: list[Skipped] = []
    with _isolated():
        finder = CandidateFinder()
        for module, names in _modules_with_names(model):
            verdict = finder.verdict(module)
            if isinstance(verdict, ClassChange):
                changes.append((module, verdict, names))
            elif verdict is not None:
                skipped.append(Skipped(names, type(module).__name__, verdict))
    fused = [FusedModule(names, type(old).__name__, change.text, change.what) for old, change, names in changes]
    return FuseReport(tuple(fused), tuple(skipped), [change.apply(module) for module, change, _ in changes])


def _check(model: object) -> None:
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise ArgumentTypeError(
            f"fuse expects a model, but got the class {model.__name__}\nfix: fuse({model.__name__}(...))"
        )
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"fuse expects an nn.Module, but got {type(model).__name__}")


def _modules_with_names(model: nn.Module) -> list[tuple[nn.Module, tuple[str, ...]]]:
    """Every module once, with all its names in the model."""
    found: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        found.setdefault(module, []).append(name)
    return [(module, tuple(names)) for module, names in found.items()]


@contextmanager
def _isolated() -> Iterator[None]:
    """Isolate the experiments from rng state, grad mode, autocast and default device."""
    rms_norm(torch.ones(1, 2, device="cpu"))  # a notice about unavailable kernels comes here
    state = random.getstate()
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.inference_mode(False),  # also enables gradients
            torch.autocast("cpu", enabled=False),
            torch.device("cpu"),
        ):
            yield
    finally:
        random.setstate(state)
