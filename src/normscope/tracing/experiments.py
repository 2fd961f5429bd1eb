"""Run a copy of a model on changed inputs, to find out what its outputs depend on. The model itself is not touched."""

import contextlib
import copy
import io
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.tracing.module_trials import _copy_value
from normscope.tracing.nested_tensors import tensors_in

_SEED = 0
_MAX_COPIED_BYTES = 1 << 28
"""Parameters of a larger model are shared with its copy, since a copy may not fit into memory, and are read-only."""

_OBJECT_DEPTH = 2
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_COPIED = (nn.Module, dict, list, tuple, set, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)

Visit = Callable[[str, nn.Module, list[Tensor], list[Tensor]], None]
"""Gets the name, inputs and outputs of a module after each of its calls."""


def experimental_copy(model: nn.Module, *, share: bool = False) -> nn.Module:
    """Copy a model in eval mode, without hooks. With `share`, or if it is large, its parameters use the same memory."""
    memo: dict[int, Any] = {id(p): _copy_parameter(p, share or _is_large(model)) for p in model.parameters()}
    for module in model.modules():
        for name, value in vars(module).items():
            if "_hooks" in name and isinstance(value, dict):
                memo[id(value)] = type(value)()
            elif name == "_compiled_call_impl":
                continue
            elif name not in ("_parameters", "_modules"):
                _prepare(value, memo)
    copied = copy.deepcopy(model, memo)
    for module in copied.modules():
        module.training = False
        module._compiled_call_impl = None
    return copied


def _is_large(model: nn.Module) -> bool:
    return sum(parameter.nbytes for parameter in model.parameters()) > _MAX_COPIED_BYTES


def _copy_parameter(parameter: nn.Parameter, share: bool) -> nn.Parameter:
    values = parameter.detach()
    return nn.Parameter(values if share else values.clone(), parameter.requires_grad)


def _prepare(value: Any, memo: dict[int, Any], depth: int = 3) -> None:
    """Enter what deepcopy cannot copy, or would copy with too much else, into its memo."""
    if isinstance(value, nn.Parameter) or id(value) in memo:
        return
    if isinstance(value, Tensor):
        memo[id(value)] = value.detach().clone()
    elif isinstance(value, torch.Generator):
        memo[id(value)] = value.clone_state()
    elif isinstance(value, dict | list | tuple | set) and depth:
        for item in value.values() if isinstance(value, dict) else value:
            _prepare(item, memo, depth - 1)
    elif not isinstance(value, (*_PLAIN, *_COPIED)):
        made = _copy_value(value, _OBJECT_DEPTH)
        memo[id(value)] = copy.copy(value) if made is value and not callable(value) else made


def copy_input(value: Any, change: Callable[[Tensor], Tensor] = lambda x: x) -> Any:
    """Copy the arguments of a call, and change their tensors; raise TypeError for arguments of unknown kinds."""
    if isinstance(value, Tensor):
        return change(value).detach().clone()
    if isinstance(value, _PLAIN):
        return value
    if type(value) in (list, tuple):
        return type(value)(copy_input(item, change) for item in value)
    if type(value) is dict:
        return {name: copy_input(item, change) for name, item in value.items()}
    raise TypeError(f"cannot copy {type(value).__name__}")


@contextmanager
def _undisturbed(devices: list[int]) -> Iterator[None]:
    """Restore all random number generators, and hide output and warnings."""
    numpy: Any = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), None if numpy is None else numpy.random.get_state()
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        with (
            torch.random.fork_rng(devices=devices),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            torch.no_grad(),
            contextlib.ExitStack() as stack,
        ):
            warnings.simplefilter("ignore")
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            torch.backends.mha.set_fastpath_enabled(False)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


@contextmanager
def _refused(model: nn.Module) -> Iterator[None]:
    """Raise if a module of the model runs, as functions in its copy may refer to it. Hooks of all modules are off."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("the copy of a model calls the model")

    module_hooks = [value for name, value in vars(nn.modules.module).items() if name.startswith("_global_")]
    of_all_modules = [(hooks, hooks.copy()) for hooks in module_hooks if isinstance(hooks, dict)]
    with contextlib.ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_pre_hook(refuse).remove)
        for hooks, saved in of_all_modules:
            hooks.clear()
            stack.callback(hooks.update, saved)
        yield


class _ReadOnly(TorchDispatchMode):
    """Raises before a function writes to the memory of a model's parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | (kwargs or {})
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tensors_in(named.get(argument.name)):
                    if tensor.untyped_storage()._cdata in self._memory:
                        raise RuntimeError(f"{func} would write to a parameter of the model")
        return func(*args, **(kwargs or {}))


class Experiment:
    """A copy of a model, and the arguments of one call.

    >>> layer = nn.Linear(2, 2, bias=False)
    >>> x = torch.eye(2)
    >>> experiment = Experiment(layer, (x,), {})
    >>> torch.equal(experiment.run(lambda x: 2 * x)[0], 2 * layer(x))
    True

    Args:
        model: the model.
        args, kwargs: the arguments, see `copy_input`.
        training: whether modules with submodules, which may return something else then, are in training mode.
    """

    def __init__(self, model: nn.Module, args: Any, kwargs: Any, *, training: bool = False) -> None:
        self._original, self._training = model, training
        self._model, self._args, self._kwargs = experimental_copy(model, share=True), args, kwargs
        self._devices = sorted({p.device.index for p in model.parameters() if p.is_cuda})
        self._is_shared = _is_large(model)

    def run(
        self,
        change: Callable[[Tensor], Tensor] = lambda x: x,
        *,
        seed: int = _SEED,
        visit: Visit | None = None,
        edit: Callable[[nn.Module], None] = lambda model: None,
    ) -> list[Tensor]:
        """Return the floating-point tensors of the output, for changed inputs. Each run starts from the same state.

        Args:
            change: returns a changed tensor of the inputs, or the same one.
            seed: of the random number generators.
            visit: is told about each call of a module.
            edit: changes the copy before the run; it must not write to parameters, which are the model's.
        """
        read_only = _ReadOnly(self._original) if self._is_shared else contextlib.nullcontext()
        with _undisturbed(self._devices), _refused(self._original), read_only:
            model = self._model if visit is None else self._visited(visit)
            model = experimental_copy(model) if visit is None else model
            edit(model)
            for module in model.modules():
                module.training = self._training and any(True for _ in module.children())
            args, kwargs = copy_input((self._args, self._kwargs), change)
            self._seed(seed)
            output = model(*args, **kwargs)
            return [tensor.clone() for tensor in tensors_in(output) if tensor.is_floating_point()]

    def module(self, name: str) -> nn.Module:
        """A module of the copy."""
        return self._model.get_submodule(name)

    def _seed(self, seed: int) -> None:
        random.seed(seed)
        for generator in (torch.default_generator, *(torch.cuda.default_generators[i] for i in self._devices)):
            generator.manual_seed(seed)

    def _visited(self, visit: Visit) -> nn.Module:
        model = experimental_copy(self._model)
        for name, module in model.named_modules():

            def tell(module: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                visit(name, module, list(tensors_in((args, kwargs))), list(tensors_in(output)))

            module.register_forward_hook(tell, with_kwargs=True)
        return model
