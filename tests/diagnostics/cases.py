"""Test cases for the findings: models with one planted fault each, and healthy models, each built from a seed."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from normscope.diagnostics.findings import Finding
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import XrayRecord

Run = Callable[[], None]
Setup = tuple[nn.Module, Run]
"""A model, and a function that runs it while the x-ray records."""
Factory = Callable[[int], Setup]


@dataclass(frozen=True)
class Fault:
    """A model with one fault.

    Args:
        name: name of the case.
        finding, module: the expected finding and its module.
        make: builds the model from a seed.
        consequences: names of other warnings and errors that the fault causes; the case's docstring says how. Any
            other warning or error fails the case.
        needs: package that the case requires.
        note: whether the finding is a note rather than a warning or an error.
    """

    name: str
    finding: str
    module: str
    make: Factory
    consequences: tuple[str, ...] = ()
    needs: str | None = None
    note: bool = False


@dataclass(frozen=True)
class Healthy:
    """A model without a fault: no seed may produce a warning or an error.

    The default suite runs the first seed; of a case that is not `quick`, because another one is much like it or is
    shorter, it runs none.
    """

    name: str
    make: Factory
    seeds: tuple[int, ...] = (0, 1)
    needs: str | None = None
    quick: bool = True


@dataclass
class Register:
    faults: list[Fault] = field(default_factory=list)
    healthy: list[Healthy] = field(default_factory=list)


REGISTER = Register()


def fault(
    finding: str, module: str, consequences: Iterable[str] = (), needs: str | None = None, note: bool = False
) -> Callable[[Callable[[], Setup]], Callable[[], Setup]]:
    """Register a function that builds a faulty model; the case is named after the function."""

    def add(function: Callable[[], Setup]) -> Callable[[], Setup]:
        name = function.__name__.replace("_", "-")
        REGISTER.faults.append(Fault(name, finding, module, lambda _: function(), tuple(consequences), needs, note))
        return function

    return add


def healthy(
    seeds: tuple[int, ...] = (0, 1), needs: str | None = None, quick: bool = True
) -> Callable[[Factory], Factory]:
    """Register a function that builds a healthy model from a seed."""

    def add(function: Factory) -> Factory:
        REGISTER.healthy.append(Healthy(function.__name__.replace("_", "-"), function, seeds, needs, quick))
        return function

    return add


def take_xray(make: Factory, seed: int = 0) -> XrayRecord:
    """Build the case and x-ray it. torch raises ValueError for some faults; the record up to there is enough."""
    torch.manual_seed(seed)
    model, run = make(seed)
    with Xray(model) as x, contextlib.suppress(ValueError):
        run()
    return x.record


def largest_magnitude(record: XrayRecord) -> float:
    """Largest finite magnitude among all outputs and gradients."""
    signals = (signal for module in record.modules for signal in (module.output, module.gradient))
    return max((signal.abs_max for signal in signals if signal is not None), default=0.0)


Objective = Callable[[], Tensor]


def run_steps(
    objectives: Iterable[Objective], optimizer: torch.optim.Optimizer, *, clip: nn.Module | None = None
) -> None:
    """One optimizer step per objective."""
    for objective in objectives:
        optimizer.zero_grad()
        objective().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(clip.parameters(), 1.0)
        optimizer.step()


def adamw(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr)


def two_training_steps(
    model: nn.Module, batch: Callable[[int], Objective], *, after: int = 0, lr: float = 1e-3
) -> Setup:
    """Train for `after` steps without the x-ray; the x-ray then records two more."""
    optimizer = adamw(model, lr)
    run_steps((batch(i) for i in range(after)), optimizer)
    return model, lambda: run_steps((batch(after + i) for i in range(2)), optimizer)


def train(
    model: nn.Module, loss: Callable[[int], Tensor], *, steps: int = 6, optimizer: torch.optim.Optimizer | None = None
) -> Setup:
    """Record some training steps: `loss` computes the loss of a batch from its number."""
    chosen = optimizer or adamw(model)
    return model, lambda: run_steps((partial(loss, number) for number in range(steps)), chosen)


def mismatches(case: Fault, found: list[Finding]) -> list[str]:
    """What is wrong with the findings of a faulty model; empty if nothing is.

    1. The expected finding is reported for its module, with the expected severity.
    2. There are no other warnings or errors except the case's consequences.
    3. It comes first among findings of its severity, except for its consequences.
    """
    own = [i for i, f in enumerate(found) if f.name == case.finding and f.module == case.module]
    if not own:
        return [f"{case.finding} in {case.module!r} was not found, only {[(f.name, f.module) for f in found]}"]
    wrong = []
    if (found[own[0]].severity == "note") != case.note:
        wrong.append(f"{case.finding} is {found[own[0]].severity}")
    for i, finding in enumerate(found):
        named = f"{finding.severity} {finding.name} in {finding.module!r}: {finding.title}"
        if i != own[0] and finding.severity != "note" and finding.name not in case.consequences:
            wrong.append(f"unexpected: {named}")
        elif i < own[0] and finding.severity == found[own[0]].severity and finding.name not in case.consequences:
            wrong.append(f"listed before the expected finding: {named}")
    return wrong
