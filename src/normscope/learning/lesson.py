"""Topics: steps that are run, shown and compared with references.

A topic is a file of `topics`: its steps in order, then a function with the decorator `Topic` that returns their inputs.
Its name is the topic's, and its docstring the description.

A step is a function. Its arguments are named after inputs and earlier steps. Its name is the step's title, its
docstring the description, and its body, read from the source file, the code that is shown: what a reader sees is what
was run. Each step is also run in float64, and compared with reference implementations.
"""

import ast
import copy
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from normscope.learning.explanation import Explanation, ExplanationStep, ExplanationValue, ReferenceCheck
from normscope.learning.inputs import check_eps

Namespace = Mapping[str, Any]
"""Inputs and results of earlier steps, by name."""

TOLERANCE = 1e-5
"""Tolerance of float32 results, relative to max(1, largest absolute value)."""

T = TypeVar("T")


def _undecorated(*_: Any) -> Any:
    raise AssertionError("use it as a decorator")


@dataclass(frozen=True)
class Step:
    """A step: decorates its function. All functions given here have arguments that are named like the step's.

    Args:
        references: other implementations, by name; one that returns None does not apply. They may also use the step's
            own name, for its result.
        axes: names of the result's dimensions, if they differ from the topic's.
        columns: column titles, if the result is a table.
        tolerance: tolerance of the references, if not a matter of rounding.
        when: whether the step applies to these inputs.
    """

    references: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    _: KW_ONLY
    axes: str | None = None
    columns: tuple[str, ...] = ()
    tolerance: Callable[..., float] | None = None
    when: Callable[..., bool] | None = None
    function: Callable[..., Any] = _undecorated

    def __call__(self, function: Callable[..., Any]) -> "Step":
        return replace(self, function=function)

    @property
    def name(self) -> str:
        return self.function.__name__


@dataclass(frozen=True)
class Lesson:
    """The inputs of a topic's steps.

    Args:
        given: inputs that are shown: tensors, numbers, modules.
        hidden: inputs that are not shown.
        note: a sentence that is added to the description, for instance about the example.
    """

    given: Namespace
    hidden: Namespace = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Topic:
    """A topic: decorates the function that returns the inputs of all steps that its file defines above.

    The function gets the checked input `x` and its options as keyword arguments; and, if it has the argument, whether
    the input `is_example`.

    Args:
        summary: one line for the list of topics.
        title: the layer, and its scope if it has one; like the description, with {names} of inputs filled in.
        example: the default input.
        check: checks an input, and may convert it.
        axes: names of the dimensions of x and of the results, by their number.
        digits: decimals to show.
    """

    summary: str
    _: KW_ONLY
    title: str
    example: Any
    check: Callable[[Tensor], Any]
    axes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    digits: int = 4
    inputs: Callable[..., Lesson] = _undecorated
    steps: Sequence[Step] = ()

    def __call__(self, inputs: Callable[..., Lesson]) -> "Topic":
        steps = [value for value in inputs.__globals__.values() if isinstance(value, Step)]
        return replace(self, inputs=inputs, steps=steps)

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return self.inputs.__name__.replace("_", "-")

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options, such as eps."""
        return tuple(name for name in inspect.signature(self.inputs).parameters if name not in ("x", "is_example"))

    def lesson(self, x: Tensor | None = None, **options: Any) -> Lesson:
        """Return the inputs of the steps, for a tensor or for the example."""
        if options.get("eps") is not None:
            check_eps(options["eps"])
        if "is_example" in inspect.signature(self.inputs).parameters:
            options["is_example"] = x is None
        return self.inputs(self.check(torch.tensor(self.example) if x is None else x), **options)

    def explain(self, x: Tensor | None = None, **options: Any) -> Explanation:
        """Run each step, in float32 and in float64, and compare."""
        with default_torch_state():
            lesson = self.lesson(x, **options)
            names: dict[str, Any] = {**lesson.given, **lesson.hidden}
            wide = {name: _to_float64(value) for name, value in names.items()}
            own_axes = self.axes.get(names["x"].dim(), ()) if self.axes else ()
            given = tuple(_value(name, value, own_axes) for name, value in lesson.given.items())
            steps = []
            for work in self.steps:
                if work.when is not None and not call(work.when, names):
                    continue
                names[work.name], wide[work.name] = call(work.function, names), call(work.function, wide)
                axes = own_axes if work.axes is None else tuple(work.axes.split())
                steps.append(
                    ExplanationStep(
                        title=work.name,
                        description=fill(inspect.getdoc(work.function) or "", names),
                        code=source_code(work.function),
                        value=_value(work.name, names[work.name], axes, work.columns),
                        checks=tuple(_checks(work, names, wide)),
                    )
                )
        description = fill(f"{self.inputs.__doc__} {lesson.note}", names)
        return Explanation(self.name, fill(self.title, names), description, given, tuple(steps), self.digits)


def seeded(make: Callable[[], T], seed: int = 0) -> T:
    """Call `make` with this random seed, without changing torch's rng state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


@contextmanager
def default_torch_state() -> Iterator[None]:
    """Enable gradients, set the default dtype to float32 and fork the rng; restore all of it afterwards."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)


def call(function: Callable[..., Any], names: Namespace) -> Any:
    """Call a function with the arguments that its parameters name."""
    return function(**{name: names[name] for name in inspect.signature(function).parameters})


def fill(text: str, names: Namespace) -> str:
    """Return a text as one paragraph, with {names} filled in."""
    return " ".join(text.format(**names).split())


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
    body = source.splitlines()[definition.body[1].lineno - 1 :]  # the first statement is the docstring
    return re.sub("^return ", f"{function.__name__} = ", textwrap.dedent("\n".join(body)), flags=re.MULTILINE)


def _checks(work: Step, names: Namespace, wide: Namespace) -> list[ReferenceCheck]:
    ours = names[work.name]
    others = {name: call(function, names) for name, function in work.references.items()}
    if isinstance(ours, Tensor) and ours.dtype == torch.float32:
        others["float64"] = wide[work.name]
    fixed = None if work.tolerance is None else call(work.tolerance, names)
    return [
        ReferenceCheck(name, max_difference(ours, theirs), _tolerance(theirs) if fixed is None else fixed)
        for name, theirs in others.items()
        if theirs is not None
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
    return TOLERANCE * float(size.where(size.isfinite(), 0.0).clamp(min=1.0).max())


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


def _value(name: str, value: Any, axes: tuple[str, ...], columns: tuple[str, ...] = ()) -> ExplanationValue:
    content = _content(value)
    fits = not isinstance(content, str) and content.ndim == len(axes)
    return ExplanationValue(name, content, axes if fits else (), columns)


def _content(value: Any) -> Any:
    """Return numbers as an array, anything else as text."""
    if isinstance(value, Tensor):
        return value.detach().numpy().copy()  # a later step may modify it in place
    if isinstance(value, nn.Module):
        return f"{type(value).__name__}({value.extra_repr()})"
    return np.asarray(value) if type(value) in (int, float) else str(value)
