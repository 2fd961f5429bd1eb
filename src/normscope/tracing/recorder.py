"""Trace one forward pass of a model: record its module calls, its torch functions, and the origin of each tensor.

The pass runs on fake tensors, which have a shape but no values, so tracing a large model costs no memory and no time.
A model whose control flow depends on values (`if x.max() > 0`) runs on real tensors instead.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map_only

from normscope.checks import is_number
from normscope.errors import ArgumentTypeError, ConfigError, NormscopeError
from normscope.ops.activations import REFERENCE_ACTIVATIONS, activate
from normscope.ops.kernel_mode import reference_kernels
from normscope.tracing.function_kinds import ATTENTION_FUNCTIONS, SHAPE_ONLY
from normscope.tracing.module_kinds import head_count
from normscope.tracing.nested_tensors import outermost_tensors, tensors_in
from normscope.tracing.preserve_state import preserve_module_state, preserve_plain_tensors
from normscope.tracing.tensor_table import TensorTable, tensor_version
from normscope.tracing.trace import ModelTrace, ModuleCall, Op, TensorRef
from normscope.tracing.tracer import FunctionCall, TraceObserver, Tracer

_IN_PLACE = ("setitem", "copy", "add", "mul", "div", "sub", "fill", "zero")


def trace_model(model: nn.Module, inputs: Sequence[Any], options: Mapping[str, Any]) -> ModelTrace:
    """Run a model once in its current mode, and return the trace. The model is left unchanged.

    Args:
        model: the model.
        inputs: its positional arguments.
        options: its keyword arguments.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"expected a torch module, but got {type(model).__name__}\nfix: pass the model itself")
    if not any(True for _ in tensors_in((tuple(inputs), dict(options)))):
        fix = "pass the model's inputs after it, for instance torch.randn(2, 5, 32), or tokens"
        raise ConfigError(f"tracing runs the model, but no tensor was given\nfix: {fix}")
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with _fake_tensor_log_disabled():
            return _run(model, inputs, options, fake_mode.from_tensor, fake_mode)
    except Exception as error:  # the model needs values, or fails on these inputs: the real run tells which
        is_meta = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
        if is_meta:
            _raise_run_error(model, error)
    try:
        return _run(model, inputs, options, Tensor.clone, None)
    except Exception as error:
        _raise_run_error(model, error)


@contextmanager
def _fake_tensor_log_disabled() -> Iterator[None]:
    """Silence torch, which logs a stack trace whenever a fake tensor fails. The error is raised anyway."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _raise_run_error(model: nn.Module, error: Exception) -> NoReturn:
    if isinstance(error, NormscopeError):
        raise error
    message = str(error).partition("\n")[0]
    reason = f"{type(error).__name__}{message and f': {message}'}"
    fix = "pass the arguments that the model expects, in the shapes it expects"
    raise ConfigError(f"{type(model).__name__} cannot be run on these inputs: {reason}\nfix: {fix}") from error


def _run(
    model: nn.Module,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    copy: Callable[[Tensor], Tensor],
    fake_mode: FakeTensorMode | None,
) -> ModelTrace:
    # A fused kernel would hide the functions it replaces.
    with preserve_module_state(model), preserve_plain_tensors(model), torch.no_grad(), reference_kernels():
        # Parameters are only read, so the real ones will do. Buffers are written to.
        parameters = {name: p if fake_mode is None else copy(p) for name, p in model.named_parameters()}
        buffers = {name: copy(buffer) for name, buffer in model.named_buffers()}
        args, kwargs = tree_map_only(Tensor, copy, (tuple(inputs), dict(options)))
        with nullcontext() if fake_mode is None else fake_mode:
            recorder = TraceRecorder(model, parameters)
            recorder.register_inputs(args, kwargs)
            with Tracer(model, recorder) as tracer:
                tracer.watch_modules(prepend=True)
                tracer.watch_functions()
                result = torch.func.functional_call(model, {**parameters, **buffers}, args, kwargs)
    return recorder.trace(result)


class TraceRecorder(TraceObserver):
    """Record every torch function with the module call it belongs to.

    Args:
        model: the model.
        parameters: its parameters, as the pass uses them.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> None:
        self._model = model
        self._parameter_sizes = {name: parameter.numel() for name, parameter in parameters.items()}
        self._origins = TensorTable[TensorRef]()
        parameter_names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._parameters_of = {
            module: frozenset(parameter_names[id(parameter)] for parameter in module.parameters())
            for module in model.modules()
        }
        for name, parameter in parameters.items():
            self._origins.put(parameter, TensorRef(tuple(parameter.shape), parameter=name))
        self._calls: list[ModuleCall] = []
        self._ops: list[Op] = []
        self._inputs: list[TensorRef] = []

    def register_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        positional = list(tensors_in(args))
        named = [(name, tensor) for name, tensor in kwargs.items() if isinstance(tensor, Tensor)]
        known = [name for name in inspect.signature(self._model.forward).parameters if name not in kwargs]
        names = [known[i] if i < len(known) else f"input {i + 1}" for i in range(len(positional))]
        for name, tensor in (*zip(names, positional, strict=True), *named):
            ref = TensorRef(tuple(tensor.shape), argument=name)
            self._origins.put(tensor, ref)
            self._inputs.append(ref)

    def enter_module(self, module: nn.Module, name: str | None, args: Any, kwargs: Any, frames: Sequence[int]) -> int:
        """Return the index of the call as its frame."""
        call = ModuleCall(
            index=len(self._calls),
            path=name or "",
            class_name=type(module).__name__,
            parent=frames[-1] if frames else None,
            is_leaf=bool(frames) and not any(True for _ in module.children()),
            parameters=self._parameters_of.get(module, frozenset()),
            extra_repr=module.extra_repr(),
            heads=head_count(module),
        )
        self._calls.append(call)
        return call.index

    def decompose(self, function: Any) -> Callable[..., Any] | None:
        """Show also what the activations of normscope are made of."""
        return _reference_activation if function is activate else super().decompose(function)

    def call_function(self, call: FunctionCall) -> Any:
        tensors = list(tensors_in((call.args, call.kwargs)))
        before = [(self._ref(tensor), tensor_version(tensor)) for tensor in tensors]
        result = call.run()
        if not call.frames:  # before the model's own call
            return result
        changed = [tensor for tensor, (_, old) in zip(tensors, before, strict=True) if tensor_version(tensor) != old]
        # A returned input was not computed: contiguous() of a contiguous tensor, dropout in eval mode.
        made = [tensor for tensor in tensors_in(result) if not any(tensor is other for other in tensors)]
        if made or changed:
            self._record_op(call, [ref for ref, _ in before], [*made, *changed])
        return result

    def _ref(self, tensor: Tensor) -> TensorRef:
        return replace(self._origins.get(tensor) or TensorRef(()), shape=tuple(tensor.shape))

    def _record_op(self, call: FunctionCall, inputs: list[TensorRef], outputs: list[Tensor]) -> None:
        name, args, kwargs = call.name, call.args, call.kwargs
        if name in SHAPE_ONLY:
            inputs = []
        mask = kwargs.get("attn_mask", args[3] if name in ATTENTION_FUNCTIONS and len(args) > 3 else None)
        is_masked = name in ATTENTION_FUNCTIONS and isinstance(mask, Tensor)
        if is_masked:  # the mask is no part of the dataflow
            inputs = inputs[:3]
        op = Op(
            index=len(self._ops),
            function=_effective_name(name, kwargs),
            inputs=tuple(inputs),
            shape=tuple(outputs[0].shape),
            call=call.frames[-1],
            scalar_args=tuple(float(a) if is_number(a) else None for a in args[:5]),
            is_causal=bool(kwargs.get("is_causal", kwargs.get("causal", False))),
            window=kwargs.get("window"),
            is_masked=is_masked,
        )
        self._ops.append(op)
        for tensor in outputs:
            self._origins.put(tensor, TensorRef(tuple(tensor.shape), op=op.index))
            base = tensor._base
            if base is not None and name in _IN_PLACE:  # written to through a view
                self._origins.put(base, TensorRef(tuple(base.shape), op=op.index))

    def trace(self, result: Any) -> ModelTrace:
        """Return the trace of a pass with this result. Its outermost tensors are the outputs."""
        outputs = outermost_tensors(result)
        if not outputs:
            fix = "use a module that returns a tensor, or a tuple, a dict or a dataclass of tensors"
            raise ConfigError(f"the model returns {type(result).__name__}, which contains no tensor\nfix: {fix}")
        refs = tuple(self._ref(tensor) for tensor in outputs)
        return ModelTrace(tuple(self._calls), tuple(self._ops), tuple(self._inputs), refs, self._parameter_sizes)


def _reference_activation(name: str, *tensors: Tensor | None) -> Tensor:
    return REFERENCE_ACTIVATIONS[name](*(tensor for tensor in tensors if tensor is not None))


def _effective_name(name: str, kwargs: Mapping[str, Any]) -> str:
    """Return "view" for a dropout that drops nothing, otherwise the name itself."""
    is_inactive = not kwargs.get("training", True) or kwargs.get("p") == 0
    return "view" if "dropout" in name and is_inactive else name
