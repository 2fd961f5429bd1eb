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
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

from normscope.ops import kernel_mode
from normscope.ops.buffers import any_requires_grad, needs_differentiable_backward

Tensors = Sequence[Tensor | None]
_SCHEMA_TYPES = {int: "SymInt", float: "float", bool: "bool", str: "str"}


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
        saved: int | None = None,
        grad_shapes: Callable[..., Sequence[Tensor | None]] | None = None,
        adjoint: Callable[[Any], Any] | None = None,
    ) -> None:
        names = tensors.split()
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
        fields = _schema_fields(config)
        self._operator = _register(
            f"normscope::{name}", [*map(_tensor_field, names), *fields], outputs, self._run_operator, self._fake
        )
        self._operator.register_autograd(self._operator_gradients, setup_context=self._setup_context)
        self._overload = self._operator._opoverload
        if backward is not None:
            width = self.count if saved is None else saved
            given = [f"Tensor? g{i}" for i in range(returned)] + [f"Tensor? s{i}" for i in range(width)]
            self._backward_overload = _register(
                f"normscope::{name}_backward",
                [*given, *fields, "bool[] needed"],
                self.num_gradients,
                self._run_backward_operator,
                self._fake_backward,
            )._opoverload

    def __call__(self, backend: kernel_mode.Backend, config: Any, *tensors: Tensor | None) -> tuple[Any, ...]:
        """Run the operation: as an operator, or eagerly. Returns all outputs."""
        if backend == "operator":
            outputs = self._overload(*tensors, *config)
            return outputs if isinstance(outputs, tuple) else (outputs,)
        if any_requires_grad(*tensors[: len(self.gradient_of)]):
            extras: list[Tensor] = []
            found = self._function(self, extras, config, *tensors)
            return (found, *extras) if isinstance(found, Tensor) else (*found, *extras)
        return self.compute(config, *tensors)

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
        needed = self._needed(needs_input_grad)
        found: Sequence[Tensor | None]
        if needs_differentiable_backward(grads[0] if len(grads) == 1 or grads[0] is not None else grads[1]):
            found = self._reference_gradients(config, grads, saved)
        else:
            found = self._compute_gradients(config, grads, saved, needed)
        return self._for_inputs(found, needs_input_grad)

    def _needed(self, needs_input_grad: Sequence[bool]) -> list[bool]:
        return [needs_input_grad[first] or needs_input_grad[last] for first, last in self._inputs_of]

    def _for_inputs(self, found: Sequence[Tensor | None], needs_input_grad: Sequence[bool]) -> list[Tensor | None]:
        mapped = [
            found[index] if wanted else None for index, wanted in zip(self.gradient_of, needs_input_grad, strict=False)
        ]
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
        return _without_none(self.compute(config, *tensors))

    def _fake(self, *arguments: Any) -> Any:
        tensors, config = arguments[: self.count], self.config(*arguments[self.count :])
        return _without_none(self.shapes(config, *tensors), tensors[0])

    def _setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, outputs = inputs[: self.count], output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*(tensors if self.saves is None else self.saves(tensors, outputs)))
        ctx.config = self.config(*inputs[self.count :])

    def _operator_gradients(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needs, rest = ctx.needs_input_grad[: self.count], [None] * len(ctx.config)
        if self.adjoint is not None:
            return *self._for_inputs(
                [self._overload(grads[0], *ctx.saved_tensors, *self.adjoint(ctx.config))], needs
            ), *rest
        needed = self._needed(needs)
        found = self._backward_overload(*grads[: self.returned], *ctx.saved_tensors, *ctx.config, needed)
        return *self._for_inputs(found if isinstance(found, tuple) else (found,), needs), *rest

    def _split_backward(self, arguments: tuple[Any, ...]) -> tuple[Any, Tensors, Tensors, list[bool]]:
        config_at = len(arguments) - 1 - len(self.config._fields)
        grads = [None if g is None or not g.numel() else g for g in arguments[: self.returned]]  # empty means None
        saved = arguments[self.returned : config_at]
        return self.config(*arguments[config_at:-1]), grads, saved, list(arguments[-1])

    def _run_backward_operator(self, *arguments: Any) -> Any:
        config, grads, saved, needed = self._split_backward(arguments)
        found = self._compute_gradients(config, grads, saved, needed)
        return _without_none(
            [g.detach() if g is not None and wanted else None for g, wanted in zip(found, needed, strict=True)]
        )

    def _fake_backward(self, *arguments: Any) -> Any:
        config, grads, saved, needed = self._split_backward(arguments)
        if self.grad_shapes is not None:
            empty: Sequence[Tensor | None] = self.grad_shapes(config, grads, saved)
        else:
            empty = [None if t is None else t.new_empty(t.shape) for t in saved[: self.num_gradients]]
        return _without_none([g if wanted else None for g, wanted in zip(empty, needed, strict=True)], grads[0])


class _KernelFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operation: Operation, extras: list[Tensor], config: Any, *tensors: Tensor | None) -> Any:
        outputs = operation.compute(config, *tensors)
        ctx.save_for_backward(*(tensors if operation.saves is None else operation.saves(tensors, outputs)))
        ctx.operation, ctx.config = operation, config
        ctx.set_materialize_grads(False)
        if operation.returned == 1:
            extras.extend(outputs[1:])  # type: ignore[arg-type]
            return outputs[0]
        y, total = outputs[:2]
        if total is None:
            return y
        if not (tensors[0].requires_grad or tensors[1].requires_grad):  # type: ignore[union-attr] # only the gain does
            ctx.mark_non_differentiable(total)
        return y, total

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
    name: str, arguments: Sequence[str], outputs: int, function: Callable[..., Any], fake: Callable[..., Any]
) -> CustomOpDef:
    results = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    operator = kernel_mode.as_operator(name, function, f"({', '.join(arguments)}) -> {results}")
    operator.register_fake(fake)
    return operator


def _without_none(outputs: Sequence[Tensor | None], like: Tensor | None = None) -> Any:
    def empty() -> Tensor:
        device = torch.device("cpu") if like is None else like.device
        return torch.empty(0, dtype=torch.float32, device=device)

    found = tuple(empty() if t is None else t for t in outputs)
    return found[0] if len(found) == 1 else found


def _tensor_field(name: str) -> str:
    return f"Tensor? {name[:-1]}" if name.endswith("?") else f"Tensor {name}"


def _schema_fields(config: type[Any]) -> list[str]:
    """Return the fields of a NamedTuple as arguments of a torch operator's schema."""
    fields = []
    for name, kind in get_type_hints(config).items():
        optional = get_origin(kind) in (types.UnionType, Union)
        plain = next(t for t in get_args(kind) if t is not type(None)) if optional else kind
        fields.append(f"{_SCHEMA_TYPES[plain]}{'?' if optional else ''} {name}")
    return fields
