"""Lessons: steps that are run, shown and compared with references.

A step is a function. Its arguments are named after given values and earlier steps. Its name is the step's title, its
docstring the description, and its body, read from the source file, the code that is shown: what a reader sees is what
was run. Each step is also run in float64, and compared with reference implementations.
"""

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.learning.explanation import Explanation, ExplanationStep, ExplanationValue, ReferenceCheck

Namespace = Mapping[str, Any]
"""Given values and results of earlier steps, by name."""

TOLERANCE = 1e-5
"""Tolerance of float32 results, relative to max(1, largest absolute value)."""


@dataclass(frozen=True)
class StepFunction:
    """A function with its references and display options."""

    function: Callable[..., Any]
    references: Mapping[str, Callable[..., Any]]
    axes: tuple[str, ...] | None = None
    columns: tuple[str, ...] = ()
    tolerance: float | None = None

    @property
    def name(self) -> str:
        return self.function.__name__

    def run(self, names: Namespace) -> Any:
        return call(self.function, names)


def step(
    references: Mapping[str, Callable[..., Any]] | None = None,
    *,
    axes: str | None = None,
    columns: Sequence[str] = (),
    tolerance: float | None = None,
) -> Callable[[Callable[..., Any]], StepFunction]:
    """Decorate a function as a step.

    Args:
        peers: who else computes this, by name: functions whose arguments are named like the step's. They may use the
            step's own name as well, and then get the numbers that it gave.
        axes: names of the result's dimensions, if they differ from the lesson's.
        columns: column titles, if the result is a table.
        tolerance: tolerance of the references, if not a matter of rounding.
    """
    named = None if axes is None else tuple(axes.split())
    return lambda function: StepFunction(function, references or {}, named, tuple(columns), tolerance)


@dataclass(frozen=True)
class Lesson:
    """A topic with its inputs and steps, before it is run.

    Args:
        title, summary, digits: as in `Explanation`.
        given: inputs of the steps: tensors, numbers, modules.
        steps: the steps, in order.
        axes: names of the input's dimensions.
        hidden: names of given values that are not shown.
    """

    title: str
    summary: str
    given: Namespace
    steps: Sequence[StepFunction]
    axes: tuple[str, ...] = ()
    digits: int = 4
    hidden: Collection[str] = ()

    def explain(self, topic: str) -> Explanation:
        """Run each step, in float32 and in float64, and compare."""
        names, wide = dict(self.given), {name: _to_float64(value) for name, value in self.given.items()}
        shown = tuple(self._value(name, value) for name, value in self.given.items() if name not in self.hidden)
        steps = []
        for work in self.steps:
            names[work.name], wide[work.name] = work.run(names), work.run(wide)
            steps.append(
                ExplanationStep(
                    title=work.name,
                    description=describe(work.function, names),
                    code=source_code(work.function),
                    value=self._value(work.name, names[work.name], work),
                    checks=tuple(_checks(work, names, wide)),
                )
            )
        summary = " ".join(self.summary.split())
        return Explanation(topic, self.title, summary, shown, tuple(steps), self.digits)

    def _value(self, name: str, value: Any, work: StepFunction | None = None) -> ExplanationValue:
        axes = self.axes if work is None or work.axes is None else work.axes
        content = _content(value)
        fits = not isinstance(content, str) and content.ndim == len(axes)
        return ExplanationValue(name, content, axes if fits else (), work.columns if work else ())


def call(function: Callable[..., Any], names: Namespace) -> Any:
    """Call a function with the arguments that its parameters name."""
    return function(**{name: names[name] for name in inspect.signature(function).parameters})


def describe(function: Callable[..., Any], names: Namespace) -> str:
    """Return the docstring as one paragraph, with {names} filled in."""
    return " ".join((inspect.getdoc(function) or "").format(**names).split())


def source_code(function: Callable[..., Any]) -> str:
    """Return the body of a step from its source file; the returned value is assigned to the step's name.

    >>> def doubled(x: float) -> float:
    ...     '''Twice as much.'''
    ...     return x + x
    >>> source_code(doubled)
    'doubled = x + x'
    """
    source = textwrap.dedent(inspect.getsource(function))
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.FunctionDef)
    lines = source.splitlines()
    parts = []
    for statement in definition.body[1:]:  # the first is the docstring
        assert statement.end_lineno is not None
        text = textwrap.dedent("\n".join(lines[statement.lineno - 1 : statement.end_lineno]))
        if isinstance(statement, ast.Return):
            text = f"{function.__name__} = {text.removeprefix('return ')}"
        parts.append(text)
    return "\n".join(parts)


def _checks(work: StepFunction, names: Namespace, wide: Namespace) -> list[ReferenceCheck]:
    ours = names[work.name]
    others = {peer: call(function, names) for peer, function in work.references.items()}
    if isinstance(ours, Tensor) and ours.dtype == torch.float32:
        others["float64"] = wide[work.name]
    return [
        ReferenceCheck(
            peer, max_difference(ours, theirs), _tolerance(theirs) if work.tolerance is None else work.tolerance
        )
        for peer, theirs in others.items()
    ]


def max_difference(ours: Any, theirs: Any) -> float:
    """Return the largest absolute difference; equal infinities and two NaNs count as equal.

    >>> max_difference(torch.tensor([1.0, float("-inf")]), torch.tensor([1.5, float("-inf")]))
    0.5
    """
    ours, theirs = _double(ours), _double(theirs)
    if ours.shape != theirs.shape:
        return float("inf")
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    apart = torch.where(same, 0.0, (ours - theirs).abs())
    return float(apart.nan_to_num(nan=float("inf"), posinf=float("inf")).max()) if apart.numel() else 0.0


def _tolerance(theirs: Any) -> float:
    size = _double(theirs).abs()
    finite = size[size.isfinite()]
    return TOLERANCE * max(1.0, float(finite.max()) if finite.numel() else 0.0)


def _double(value: Any) -> Tensor:
    return torch.as_tensor(value).detach().double()


def _to_float64(value: Any) -> Any:
    """Convert tensors and modules to float64; return anything else unchanged."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, dict):
        return {key: _to_float64(part) for key, part in value.items()}
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


def _content(value: Any) -> Any:
    """Return numbers as an array, anything else as text."""
    if isinstance(value, Tensor):
        return value.detach().numpy().copy()  # a later step may modify it in place
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, nn.Module):
        return f"{type(value).__name__}({value.extra_repr()})"
    if isinstance(value, int | float):
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64).numpy()
    return str(value)
