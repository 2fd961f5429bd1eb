"""Trace one forward pass of a model: hooks record its module calls, a torch function mode records its functions.

The pass runs on fake tensors, which have a shape but no values, so tracing a large model costs no memory and no time.
A model whose control flow depends on values (`if x.max() > 0`) runs on real tensors instead.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from normscope.checks import is_number
from normscope.errors import ConfigError, DtypeError, NormscopeError
from normscope.ops.activations import REFERENCE_ACTIVATIONS, activate
from normscope.ops.kernel_mode import reference_kernels
from normscope.tracing.function_kinds import ATTENTION_FUNCTIONS, SHAPE_ONLY, decomposed, function_name
from normscope.tracing.hooks import HookHandles
from normscope.tracing.module_kinds import head_count
from normscope.tracing.nested_tensors import outermost_tensors, tensors_in
from normscope.tracing.preserve_state import preserve_module_state, preserve_plain_tensors
from normscope.tracing.trace import ModelTrace, ModuleCall, Op, Shape, TensorRef

_IN_PLACE = ("setitem", "copy", "add", "mul", "div", "sub", "fill", "zero")


def trace_model(model: nn.Module, inputs: Sequence[Any], options: Mapping[str, Any]) -> ModelTrace:
    """Run a model once in its current mode, and return the trace. The model is left unchanged.

    Args:
        model: the model.
        inputs: its positional arguments.
        options: its keyword arguments.
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"expected a torch module, but got {type(model).__name__}\nfix: pass the model itself")
    if not any(True for _ in tensors_in((tuple(inputs), dict(options)))):
        raise ConfigError(
            "tracing runs the model, but no tensor was given\n"
            "fix: pass the model's inputs after it, for instance torch.randn(2, 5, 32), or tokens"
        )
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
    raise ConfigError(
        f"{type(model).__name__} cannot be run on these inputs: {type(error).__name__}{message and f': {message}'}\n"
        f"fix: pass the arguments that the model expects, in the shapes it expects"
    ) from error


def _run(
    model: nn.Module,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    copy: Callable[[Tensor], Tensor],
    fake_mode: FakeTensorMode | None,
) -> ModelTrace:
    with ExitStack() as stack:
        stack.enter_context(preserve_module_state(model))
        stack.enter_context(preserve_plain_tensors(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(reference_kernels())  # a fused kernel would hide the functions it replaces
        # Parameters are only read, so the real ones will do. Buffers are written to.
        parameters = {name: p if fake_mode is None else copy(p) for name, p in model.named_parameters()}
        buffers = {name: copy(buffer) for name, buffer in model.named_buffers()}
        args, kwargs = tree_map_only(Tensor, copy, (tuple(inputs), dict(options)))
        if fake_mode is not None:
            stack.enter_context(fake_mode)
        recorder = TraceRecorder(model, parameters)
        recorder.register_inputs(args, kwargs)
        handles = stack.enter_context(HookHandles())
        handles.add_module_hooks(model.modules(), recorder.enter_module, recorder.leave_module, prepend=True)
        stack.enter_context(recorder)
        result = torch.func.functional_call(model, {**parameters, **buffers}, args, kwargs)
    return recorder.trace(result)


class TraceRecorder(TorchFunctionMode):
    """Record every torch function with the module call it belongs to.

    Args:
        model: the model.
        parameters: its parameters, as the pass uses them.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._model = model
        self._parameter_sizes = {name: parameter.numel() for name, parameter in parameters.items()}
        self._origins: Any = WeakIdKeyDictionary()  # the origin of every tensor that is alive
        self._names = {id(module): name for name, module in model.named_modules()}
        parameter_names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._parameters_of = {
            id(module): frozenset(parameter_names[id(parameter)] for parameter in module.parameters())
            for module in model.modules()
        }
        for name, parameter in parameters.items():
            self._origins[parameter] = TensorRef(tuple(parameter.shape), parameter=name)
        self._calls: list[ModuleCall] = []
        self._call_stack: list[int] = []
        self._ops: list[Op] = []
        self._inputs: list[TensorRef] = []

    def register_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        positional = list(tensors_in(args))
        named = [(name, tensor) for name, tensor in kwargs.items() if isinstance(tensor, Tensor)]
        known = [name for name in inspect.signature(self._model.forward).parameters if name not in kwargs]
        names = [known[i] if i < len(known) else f"input {i + 1}" for i in range(len(positional))]
        for name, tensor in (*zip(names, positional, strict=True), *named):
            ref = TensorRef(tuple(tensor.shape), argument=name)
            self._origins[tensor] = ref
            self._inputs.append(ref)

    def enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        call = ModuleCall(
            index=len(self._calls),
            path=self._names.get(id(module), ""),
            class_name=type(module).__name__,
            parent=self._call_stack[-1] if self._call_stack else None,
            is_leaf=bool(self._call_stack) and not any(True for _ in module.children()),
            parameters=self._parameters_of.get(id(module), frozenset()),
            extra_repr=module.extra_repr(),
            heads=head_count(module),
        )
        self._calls.append(call)
        self._call_stack.append(call.index)

    def leave_module(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._call_stack.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is activate:  # one of ours, which has a reference implementation
            with self:
                return REFERENCE_ACTIVATIONS[args[0]](*(tensor for tensor in args[1:] if tensor is not None))
        composite = decomposed(func)
        if composite is not None:
            with self:
                return composite(*args, **kwargs)
        tensors = list(tensors_in((args, kwargs)))
        before = [(self._ref(tensor), tensor._version) for tensor in tensors]
        result = func(*args, **kwargs)
        if not self._call_stack:  # before the model's own call
            return result
        changed = [tensor for tensor, (_, version) in zip(tensors, before, strict=True) if tensor._version != version]
        # A returned input was not computed: contiguous() of a contiguous tensor, dropout in eval mode.
        made = [tensor for tensor in tensors_in(result) if not any(tensor is other for other in tensors)]
        if made or changed:
            self._record_op(function_name(func), args, kwargs, [ref for ref, _ in before], [*made, *changed])
        return result

    def _ref(self, tensor: Tensor) -> TensorRef:
        origin = self._origins.get(tensor)
        shape: Shape = tuple(tensor.shape)
        if origin is None:
            return TensorRef(shape)
        return TensorRef(shape, origin.op, origin.argument, origin.parameter)

    def _record_op(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[TensorRef], outputs: list[Tensor]
    ) -> None:
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
            call=self._call_stack[-1],
            scalar_args=tuple(float(a) if is_number(a) else None for a in args[:5]),
            is_causal=bool(kwargs.get("is_causal", kwargs.get("causal", False))),
            window=kwargs.get("window"),
            is_masked=is_masked,
        )
        self._ops.append(op)
        for tensor in outputs:
            self._origins[tensor] = TensorRef(tuple(tensor.shape), op=op.index)
            base = tensor._base
            if base is not None and name in _IN_PLACE:  # written to through a view
                self._origins[base] = TensorRef(tuple(base.shape), op=op.index)

    def trace(self, result: Any) -> ModelTrace:
        """Return the trace of a pass with this result. Its outermost tensors are the outputs."""
        outputs = outermost_tensors(result)
        if not outputs:
            raise ConfigError(
                f"the model returns {type(result).__name__}, which contains no tensor\n"
                f"fix: use a module that returns a tensor, or a tuple, a dict or a dataclass of tensors"
            )
        return ModelTrace(
            tuple(self._calls),
            tuple(self._ops),
            tuple(self._inputs),
            tuple(self._ref(tensor) for tensor in outputs),
            self._parameter_sizes,
        )


def _effective_name(name: str, kwargs: Mapping[str, Any]) -> str:
    """Return "view" for a dropout that drops nothing, otherwise the name itself."""
    is_inactive = not kwargs.get("training", True) or kwargs.get("p") == 0
    return "view" if "dropout" in name and is_inactive else name
