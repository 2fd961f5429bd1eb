"""The builder of a differentiable operation on fused kernels.

An operation declares its kernels, the shapes of its results and a reference implementation. `Operation` makes of them:
- an autograd.Function, for eager mode;
- a torch operator with a fake implementation and an autograd formula, for torch.compile, torch.export and make_fx;
- the fallback to the reference: for double backward, and for everything if numba is missing or fails.
"""

import importlib
import types
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, get_type_hints

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

from normscope.ops import kernel_mode
from normscope.ops.buffers import any_requires_grad, needs_differentiable_backward

Tensors = Sequence[Any]
"""Tensors, or None for those that were not given or not computed."""

_SCHEMA_TYPES = {int: "SymInt", int | None: "SymInt?", float: "float", bool: "bool", str: "str"}


class KernelError(Exception):
    """A kernel could not be imported, compiled or run. All kernels are now disabled, with a warning."""


@lru_cache
def _import_kernels(module: str) -> types.ModuleType:
    return importlib.import_module(f"normscope.ops.fused.{module}")


def fused_module(module: str) -> types.ModuleType:
    """Import a module of kernels, which imports numba."""
    try:
        return _import_kernels(module)
    except Exception as error:  # whatever the reason, use the reference implementation
        kernel_mode.disable_kernels(error)
        raise KernelError from error


def run_kernel(module: str, name: str, *arguments: Any) -> Any:
    """Run a kernel of `normscope.ops.fused`. If it fails, disable all kernels with a warning."""
    try:
        return getattr(_import_kernels(module), name)(*arguments)
    except Exception as error:
        kernel_mode.disable_kernels(error)
        raise KernelError from error


class Operation:
    """A differentiable operation with a fused kernel and a reference implementation.

    Args:
        name: name of the torch operator, for instance "norm_rows"; its backward pass is "norm_rows_backward".
        tensors: names of the input tensors; a "?" marks those that may be None.
        config: the other arguments, a NamedTuple of numbers, flags and strings.
        forward: (config, *tensors) -> outputs, on kernels. An output that was not computed is None.
        backward: (config, grads, saved, needed) -> gradients, on kernels, where `needed` says which ones are.
        reference: (config, *saved) -> the differentiable outputs, in torch.
        shapes: (config, *tensors) -> empty outputs, for fake tensors.
        fallback: (config, *tensors) -> outputs, in torch; by default `reference`, if all inputs are saved.
        saves: (tensors, outputs) -> tensors saved for the backward pass; by default the inputs. Those that have a
            gradient come first.
        gradient_of: the index of the gradient for each of the first inputs.
        returned: number of outputs that have a gradient. The others, such as statistics, have none.
        grad_shapes: (config, grads, saved) -> empty gradients; by default contiguous, like the saved tensors.
        adjoint: for a linear operation, whose backward pass is the operation itself: its config.
    """

    def __init__(
        self,
        name: str,
        *,
        tensors: str,
        config: type[Any],
        forward: Callable[..., tuple[Tensor | None, ...]],
        reference: Callable[..., tuple[Tensor, ...]],
        shapes: Callable[..., tuple[Tensor | None, ...]],
        backward: Callable[..., Sequence[Tensor | None]] | None = None,
        fallback: Callable[..., tuple[Tensor | None, ...]] | None = None,
        saves: Callable[[Tensors, Tensors], Tensors] | None = None,
        gradient_of: tuple[int, ...] = (0,),
        returned: int = 1,
        outputs: int = 1,
        grad_shapes: Callable[..., Sequence[Tensor | None]] | None = None,
        adjoint: Callable[[Any], Any] | None = None,
    ) -> None:
        names = [f"Tensor? {name[:-1]}" if name.endswith("?") else f"Tensor {name}" for name in tensors.split()]
        self.name, self.config, self.count, self.returned = name, config, len(names), returned
        self.forward, self.backward, self.reference, self.shapes = forward, backward, reference, shapes
        self.fallback = reference if fallback is None else fallback
        self.saves, self.grad_shapes, self.adjoint = saves, grad_shapes, adjoint
        self.gradient_of, self.num_gradients = gradient_of, max(gradient_of) + 1
        # The first and the last input that each gradient is for.
        self._inputs_of = [
            (gradient_of.index(i), len(gradient_of) - 1 - gradient_of[::-1].index(i)) for i in range(self.num_gradients)
        ]
        self._padding = [None] * (self.count - len(gradient_of))
        self._function = fast_apply(type(name, (_KernelFunction,), {}))
        fields = [f"{_SCHEMA_TYPES[kind]} {field}" for field, kind in get_type_hints(config).items()]
        results = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
        operator = _register(name, [*names, *fields], results, self._run_operator, self._fake)
        operator.register_autograd(self._operator_gradients, setup_context=self._setup_context)
        self._overload = operator._opoverload
        if backward is not None:
            arguments = ["Tensor?[] grads", "Tensor?[] saved", *fields, "bool[] needed"]
            self._backward_overload = _register(
                f"{name}_backward", arguments, "Tensor[]", self._run_backward_operator, self._fake_backward
            )._opoverload

    def __call__(self, backend: kernel_mode.Backend, config: Any, *tensors: Tensor | None) -> tuple[Any, ...]:
        """Run the operation: as an operator, or eagerly. Returns all outputs; eagerly, those that were computed."""
        if backend == "operator":
            outputs = self._overload(*tensors, *config)
            return outputs if isinstance(outputs, tuple) else (outputs,)
        if not any_requires_grad(*tensors[: len(self.gradient_of)]):
            return self.compute(config, *tensors)
        extras: list[Tensor] = []
        found = self._function(self, extras, config, *tensors)
        return (found, *extras) if isinstance(found, Tensor) else (*found, *extras)

    def compute(self, config: Any, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        """Compute all outputs, without a graph."""
        try:
            return self.forward(config, *tensors)
        except KernelError:
            with torch.no_grad():
                return self.fallback(config, *tensors)

    def gradients(
        self, config: Any, grads: Tensors, saved: Tensors, needs_input_grad: Sequence[bool]
    ) -> list[Tensor | None]:
        """Return the gradient of each input."""
        found: Sequence[Tensor | None]
        if needs_differentiable_backward(grads[-1] if grads[0] is None else grads[0]):
            found = self._reference_gradients(config, grads, saved)
        else:
            needed = [needs_input_grad[first] or needs_input_grad[last] for first, last in self._inputs_of]
            found = self._compute_gradients(config, grads, saved, needed)
        return self._for_inputs(found, needs_input_grad)

    def _for_inputs(self, found: Sequence[Tensor | None], needs_input_grad: Sequence[bool]) -> list[Tensor | None]:
        mapped = [found[i] if wanted else None for i, wanted in zip(self.gradient_of, needs_input_grad, strict=False)]
        return mapped + self._padding

    def _compute_gradients(
        self, config: Any, grads: Tensors, saved: Tensors, needed: list[bool]
    ) -> Sequence[Tensor | None]:
        if self.adjoint is not None:
            return self.compute(self.adjoint(config), grads[0], *saved)
        assert self.backward is not None
        try:
            return self.backward(config, grads, saved, needed)
        except KernelError:
            leaves = [
                t.detach().requires_grad_() if i < len(needed) and needed[i] and t is not None else t
                for i, t in enumerate(saved)
            ]
            return self._reference_gradients(config, grads, leaves)

    def _reference_gradients(self, config: Any, grads: Tensors, saved: Tensors) -> list[Tensor | None]:
        """Return autograd's gradients of the reference; None for tensors that do not require grad."""
        if self.adjoint is not None:
            return list(self.reference(self.adjoint(config), grads[0], *saved))
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            # Views: a saved tensor may be an output of this very node (x + branch), which is not to run again.
            inputs = [t if t is None or not t.requires_grad else t.view_as(t) for t in saved[: self.num_gradients]]
            leaves = [t for t in inputs if t is not None and t.requires_grad]
            outputs = self.reference(config, *inputs, *saved[self.num_gradients :])
            pairs = [(y, g.to(y.dtype)) for y, g in zip(outputs, grads, strict=False) if g is not None]
            ys, gs = [y for y, _ in pairs], [g for _, g in pairs]
            found = iter(torch.autograd.grad(ys, leaves, gs, create_graph=create_graph, allow_unused=True))
        return [next(found) if t is not None and t.requires_grad else None for t in inputs]

    # Operators return tensors only: an empty tensor represents None.
    def _run_operator(self, *arguments: Any) -> Any:
        tensors, config = arguments[: self.count], self.config(*arguments[self.count :])
        return self._results(_without_none(self.compute(config, *tensors)))

    def _fake(self, *arguments: Any) -> Any:
        tensors, config = arguments[: self.count], self.config(*arguments[self.count :])
        return self._results(_without_none(self.shapes(config, *tensors), tensors[0]))

    @staticmethod
    def _results(outputs: list[Tensor]) -> Any:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, outputs = inputs[: self.count], output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*(tensors if self.saves is None else self.saves(tensors, outputs)))
        ctx.config = self.config(*inputs[self.count :])
        ctx.set_materialize_grads(False)

    def _operator_gradients(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needs, rest = ctx.needs_input_grad[: self.count], [None] * len(ctx.config)
        if grads[0] is None:  # the result was not used, only x + branch: parameters get no gradient, as in eager mode
            residual_grad = grads[1] if self.returned > 1 else None
            return *self._for_inputs([residual_grad, *[None] * (self.num_gradients - 1)], needs), *rest
        if self.adjoint is not None:
            found = [self._overload(grads[0], *ctx.saved_tensors, *self.adjoint(ctx.config))]
        else:
            given = [*grads[: self.returned]]
            needed = [needs[first] or needs[last] for first, last in self._inputs_of]
            found = self._backward_overload(given, [*ctx.saved_tensors], *ctx.config, needed)
        return *self._for_inputs(found, needs), *rest

    def _run_backward_operator(self, grads: Tensors, saved: Tensors, *arguments: Any) -> Any:
        config, needed = self.config(*arguments[:-1]), arguments[-1]
        found = self._compute_gradients(config, _with_none(grads), saved, needed)
        return _without_none([None if g is None else g.detach() for g in _only(needed, found)])

    def _fake_backward(self, grads: Tensors, saved: Tensors, *arguments: Any) -> Any:
        config, needed, given = self.config(*arguments[:-1]), arguments[-1], _with_none(grads)
        if self.grad_shapes is not None:
            empty: Sequence[Tensor | None] = self.grad_shapes(config, given, saved)
        else:
            empty = [None if t is None else t.new_empty(t.shape) for t in saved[: self.num_gradients]]
        return _without_none(_only(needed, empty), given[0])


class _KernelFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operation: Operation, extras: list[Tensor], config: Any, *tensors: Tensor | None) -> Any:
        outputs = operation.compute(config, *tensors)
        ctx.save_for_backward(*(tensors if operation.saves is None else operation.saves(tensors, outputs)))
        ctx.operation, ctx.config = operation, config
        ctx.set_materialize_grads(False)
        extras.extend(outputs[operation.returned :])  # type: ignore[arg-type]
        if operation.returned == 1 or outputs[1] is None:
            return outputs[0]  # without a tuple, which autograd would take longer to wrap
        return outputs[: operation.returned]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        found = ctx.operation.gradients(ctx.config, grads, ctx.saved_tensors, ctx.needs_input_grad[3:])
        return None, None, None, *found


def fast_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return the function's `apply` without its check for leftover torch.func tensors.

    The check takes as long as a small kernel, and `select_backend` has already excluded such tensors.
    """
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def _register(
    name: str, arguments: Sequence[str], results: str, function: Callable[..., Any], fake: Callable[..., Any]
) -> CustomOpDef:
    operator = kernel_mode.as_operator(f"normscope::{name}", function, f"({', '.join(arguments)}) -> {results}")
    operator.register_fake(fake)
    return operator


def _without_none(outputs: Sequence[Tensor | None], like: Tensor | None = None) -> list[Tensor]:
    device = torch.device("cpu") if like is None else like.device
    return [torch.empty(0, dtype=torch.float32, device=device) if t is None else t for t in outputs]


def _with_none(grads: Tensors) -> Tensors:
    return [None if g is None or not g.numel() else g for g in grads]


def _only(needed: Sequence[bool], found: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [g if wanted else None for g, wanted in zip(found, needed, strict=True)]
