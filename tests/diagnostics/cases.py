"""Cases for the findings: models with one planted fault each, and models that are well. Each is made from a seed."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from normscope.diagnostics.findings import Finding
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import XrayRecord

Run = Callable[[], None]
Scene = tuple[nn.Module, Run]
"""A model, and what is done with it while the x-ray looks."""
Make = Callable[[int], Scene]


@dataclass(frozen=True)
class Fault:
    """A model with one fault.

    Args:
        name: what was done to the model.
        finding, module: the finding that has to be made, and where.
        make: the case from a seed.
        follows: names of findings, of warnings and errors, that follow from this very fault by the mechanism that the
            case's docstring tells. Any other warning or error, and one of these that comes before the fault's own
            finding although it is no more severe, fails the case.
        needs: a package that has to be there.
        note: whether the finding is a note, and not a warning or an error.
    """

    name: str
    finding: str
    module: str
    make: Make
    follows: tuple[str, ...] = ()
    needs: str | None = None
    note: bool = False


@dataclass(frozen=True)
class Healthy:
    """A model without a fault: no warning and no error may be found, for any of its seeds."""

    name: str
    make: Make
    seeds: tuple[int, ...] = (0, 1)
    needs: str | None = None


@dataclass
class Register:
    faults: list[Fault] = field(default_factory=list)
    healthy: list[Healthy] = field(default_factory=list)


REGISTER = Register()


def fault(
    finding: str, module: str, follows: Iterable[str] = (), needs: str | None = None, note: bool = False
) -> Callable[[Callable[[], Scene]], Callable[[], Scene]]:
    """Register a function that makes a faulty model; its name is the case's."""

    def add(function: Callable[[], Scene]) -> Callable[[], Scene]:
        name = function.__name__.replace("_", "-")
        REGISTER.faults.append(Fault(name, finding, module, lambda _: function(), tuple(follows), needs, note))
        return function

    return add


def well(seeds: tuple[int, ...] = (0, 1), needs: str | None = None) -> Callable[[Make], Make]:
    """Register a function that makes a healthy model from a seed."""

    def add(function: Make) -> Make:
        REGISTER.healthy.append(Healthy(function.__name__.replace("_", "-"), function, seeds, needs))
        return function

    return add


def look(make: Make, seed: int = 0) -> XrayRecord:
    """Make the case and take its x-ray. Torch itself refuses some faults; what was seen until then is enough."""
    torch.manual_seed(seed)
    model, run = make(seed)
    with Xray(model) as x, contextlib.suppress(ValueError):
        run()
    return x.record


def largest(record: XrayRecord) -> float:
    """The largest finite number among all outputs and gradients."""
    signals = (signal for module in record.modules for signal in (module.output, module.gradient))
    return max((signal.abs_max for signal in signals if signal is not None), default=0.0)


Objective = Callable[[], Tensor]


def steps(objectives: Iterable[Objective], optimiser: torch.optim.Optimizer, *, clip: nn.Module | None = None) -> None:
    """A step for each objective."""
    for objective in objectives:
        optimiser.zero_grad()
        objective().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(clip.parameters(), 1.0)
        optimiser.step()


def adam(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr)


def running(model: nn.Module, batch: Callable[[int], Objective], *, trained: int = 0, lr: float = 1e-3) -> Scene:
    """Train for some steps, unseen; then the x-ray looks at two more."""
    optimiser = adam(model, lr)
    steps((batch(i) for i in range(trained)), optimiser)
    return model, lambda: steps((batch(trained + i) for i in range(2)), optimiser)


def misses(case: Fault, found: list[Finding]) -> list[str]:
    """What is wrong with the findings of a faulty model; nothing if they are as they should be.

    1. The fault's finding is there, in its module, and as severe as the case says.
    2. No other warning or error is there, but of the names that the case says follow from its fault.
    3. Of its severity it is the first, but for those that follow from it.
    """
    own = [i for i, f in enumerate(found) if f.name == case.finding and f.module == case.module]
    if not own:
        return [f"{case.finding} in {case.module!r} was not found; but {[(f.name, f.module) for f in found]}"]
    wrong = []
    if (found[own[0]].severity == "note") != case.note:
        wrong.append(f"{case.finding} is {found[own[0]].severity}")
    for i, finding in enumerate(found):
        named = f"{finding.severity} {finding.name} in {finding.module!r}: {finding.title}"
        if i != own[0] and finding.severity != "note" and finding.name not in case.follows:
            wrong.append(f"besides the fault: {named}")
        elif i < own[0] and finding.severity == found[own[0]].severity and finding.name not in case.follows:
            wrong.append(f"before the fault: {named}")
    return wrong
