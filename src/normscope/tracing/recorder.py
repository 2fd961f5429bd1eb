"""Run a model once, and write down what it did: hooks see its modules, and a mode of torch's sees its functions.

Nothing is computed where it can be helped: the pass runs on tensors that have a shape and no numbers, so a large model
takes no memory and no time. A model that looks at numbers on its way (`if x.max() > 0`) is run for real instead.
"""

import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from normscope.checks import is_number
from normscope.errors import ConfigError, DtypeError, NormscopeError
from normscope.ops.activations import REFERENCE_ACTIVATIONS, activate
from normscope.ops.kernel_mode import reference_kernels
from normscope.tracing.function_kinds import ATTENTION_FUNCTIONS, SHAPE_ONLY, function_name
from normscope.tracing.preserve_state import preserve_module_state, preserve_plain_tensors
from normscope.tracing.trace import ModelTrace, ModuleCall, Op, Shape, TensorRef

_DEEPEST = 6


def trace_model(model: nn.Module, inputs: Sequence[Any], options: Mapping[str, Any]) -> ModelTrace:
    """Run the model on these inputs, in the mode it is in, and return what it did; it stays as it was."""
    if not isinstance(model, nn.Module):
        raise DtypeError(
            f"a drawing is made of a torch module, but got {type(model).__name__}\nfix: give the model itself"
        )
    if not any(isinstance(value, Tensor) for value in tree_leaves((tuple(inputs), dict(options)))):
        raise ConfigError(
            "to see what the model does it has to be run, but no tensor was given\n"
            "fix: give its inputs after it, for instance torch.randn(2, 5, 32), or tokens"
        )
    stand_ins = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with _without_log():
            return _run(model, inputs, options, stand_ins.from_tensor, stand_ins)
    except Exception as error:  # it wanted to see numbers, or it fails on these inputs: for real it will say which
        has_numbers = not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
        if not has_numbers:
            _tell(model, error)
    try:
        return _run(model, inputs, options, Tensor.clone, None)
    except Exception as error:
        _tell(model, error)


@contextmanager
def _without_log() -> Iterator[None]:
    """torch logs every failure of a stand-in, with its whole stack; what fails is told once, as an error."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _tell(model: nn.Module, error: Exception) -> NoReturn:
    if isinstance(error, NormscopeError):
        raise error
    words = str(error).partition("\n")[0]
    raise ConfigError(
        f"{type(model).__name__} cannot be run on these inputs: {type(error).__name__}{words and f': {words}'}\n"
        f"fix: give what the model is called with, in the shapes that it takes"
    ) from error


def _run(
    model: nn.Module,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    copied: Callable[[Tensor], Tensor],
    stand_ins: FakeTensorMode | None,
) -> ModelTrace:
    with ExitStack() as stack:
        stack.enter_context(preserve_module_state(model))
        stack.enter_context(preserve_plain_tensors(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(reference_kernels())  # fused kernels would hide what they take together
        # Parameters are only read, so they may be the real ones; buffers are written to.
        weights = {name: p if stand_ins is None else copied(p) for name, p in model.named_parameters()}
        buffers = {name: copied(buffer) for name, buffer in model.named_buffers()}
        given = tree_map_only(Tensor, copied, (tuple(inputs), dict(options)))
        if stand_ins is not None:
            stack.enter_context(stand_ins)
        recorder = TraceRecorder(model, weights)
        recorder.take_arguments(given)
        stack.enter_context(recorder.watching())
        stack.enter_context(recorder)
        result = torch.func.functional_call(model, {**weights, **buffers}, *given)
    return recorder.trace(result)


class TraceRecorder(TorchFunctionMode):
    """Sees every function on tensors, and knows which module it was a part of."""

    def __init__(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._model = model
        self._sizes = {name: weight.numel() for name, weight in weights.items()}
        self._origins: Any = WeakIdKeyDictionary()  # of every tensor that is alive: what made it
        self._names = {id(module): name for name, module in model.named_modules()}
        by_tensor = {id(parameter): name for name, parameter in model.named_parameters()}
        self._owned = {
            id(module): frozenset(by_tensor[id(parameter)] for parameter in module.parameters())
            for module in model.modules()
        }
        for name, weight in weights.items():
            self._origins[weight] = TensorRef(tuple(weight.shape), parameter=name)
        self._calls: list[ModuleCall] = []
        self._open: list[int] = []
        self._ops: list[Op] = []
        self._arguments: list[TensorRef] = []

    def take_arguments(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        positional = [tensor for tensor in tree_leaves(given[0]) if isinstance(tensor, Tensor)]
        named = [(name, tensor) for name, tensor in given[1].items() if isinstance(tensor, Tensor)]
        known = [name for name in inspect.signature(self._model.forward).parameters if name not in given[1]]
        names = [known[i] if i < len(known) else f"input {i + 1}" for i in range(len(positional))]
        for name, tensor in (*zip(names, positional, strict=True), *named):
            value = TensorRef(tuple(tensor.shape), argument=name)
            self._origins[tensor] = value
            self._arguments.append(value)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on every module, first to be called before it and last after it."""
        with ExitStack() as stack:
            for module in self._model.modules():
                before = module.register_forward_pre_hook(self._enter, prepend=True)
                stack.callback(before.remove)
                after = module.register_forward_hook(self._leave, always_call=True)
                stack.callback(after.remove)
            yield

    def _enter(self, module: nn.Module, _: Any) -> None:
        call = ModuleCall(
            index=len(self._calls),
            path=self._names.get(id(module), ""),
            kind=type(module).__name__,
            parent=self._open[-1] if self._open else None,
            is_leaf=bool(self._open) and not any(True for _ in module.children()),
            parameters=self._owned.get(id(module), frozenset()),
            extra_repr=module.extra_repr(),
        )
        self._calls.append(call)
        self._open.append(call.index)

    def _leave(self, module: nn.Module, _: Any, __: Any) -> None:
        self._open.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is activate:  # ours, and known by its formula
            with self:
                return REFERENCE_ACTIVATIONS[args[0]](*(tensor for tensor in args[1:] if tensor is not None))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        before = [(self._value(tensor), tensor._version) for tensor in tensors]
        result = func(*args, **kwargs)
        if not self._open:  # before the model's first module, or in a hook of someone else's
            return result
        changed = [tensor for tensor, (_, version) in zip(tensors, before, strict=True) if tensor._version != version]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        # What comes out as it went in was not touched: contiguous() of what is so already, dropout in eval mode.
        made = [tensor for tensor in made if not any(tensor is other for other in tensors)]
        if made or changed:
            self._note(function_name(func), args, kwargs, [value for value, _ in before], [*made, *changed])
        return result

    def _value(self, tensor: Tensor) -> TensorRef:
        origin = self._origins.get(tensor)
        shape: Shape = tuple(tensor.shape)
        if origin is None:
            return TensorRef(shape)
        return TensorRef(shape, origin.op, origin.argument, origin.parameter)

    def _note(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[TensorRef], made: list[Tensor]
    ) -> None:
        if name in SHAPE_ONLY:
            inputs = []
        mask = kwargs.get("attn_mask", args[3] if name in ATTENTION_FUNCTIONS and len(args) > 3 else None)
        is_masked = name in ATTENTION_FUNCTIONS and isinstance(mask, Tensor)
        if is_masked:  # it says who sees whom, and is no part of what flows
            inputs = inputs[:3]
        op = Op(
            index=len(self._ops),
            function=_settled(name, kwargs),
            inputs=tuple(inputs),
            shape=tuple(made[0].shape),
            call=self._open[-1],
            scalar_args=tuple(float(a) if is_number(a) else None for a in args[:5]),
            is_causal=bool(kwargs.get("is_causal", kwargs.get("causal", False))),
            window=kwargs.get("window"),
            is_masked=is_masked,
        )
        self._ops.append(op)
        for tensor in made:
            self._origins[tensor] = TensorRef(tuple(tensor.shape), op=op.index)
            base = tensor._base
            if base is not None and name in ("setitem", "copy", "add", "mul", "div", "sub", "fill", "zero"):
                self._origins[base] = TensorRef(tuple(base.shape), op=op.index)  # written to by way of a view

    def trace(self, result: Any) -> ModelTrace:
        """All that was seen. Of a result with several parts, those that are tensors themselves count."""
        parts = _outermost_tensors(result)
        if not parts:
            raise ConfigError(
                f"the model returns {type(result).__name__}, in which no tensor was found\n"
                f"fix: draw a module that returns a tensor, or a tuple, a dictionary or a dataclass of them"
            )
        return ModelTrace(
            tuple(self._calls),
            tuple(self._ops),
            tuple(self._arguments),
            tuple(self._value(part) for part in parts),
            self._sizes,
        )


def _outermost_tensors(result: Any) -> list[Tensor]:
    """The tensors in a result with the least round them: caches and lists of states, further inside, are by the way."""
    values = [result]
    for _ in range(_DEEPEST):
        found = [value for value in values if isinstance(value, Tensor)]
        if found:
            return found
        values = [part for value in values for part in _parts(value)]
    return []


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, tuple | list):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return []


def _settled(name: str, kwargs: Mapping[str, Any]) -> str:
    """The function that is meant, where an argument decides: dropout that drops nothing only looks."""
    is_idle = not kwargs.get("training", True) or kwargs.get("p") == 0
    return "view" if "dropout" in name and is_idle else name
