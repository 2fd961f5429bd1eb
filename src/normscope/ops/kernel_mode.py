"""Whether kernels run: the environment, contexts, numba, and the tools of torch that need torch's own operations.

Set NORMSCOPE_KERNELS=reference, torch or fused in the environment, or use `with use_kernels("torch"):`, to use one
implementation wherever it applies; by default `normscope.ops.registry` chooses. If numba is missing or fails, the fused
kernels are disabled with a warning. Results are the same, only slower.
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch._library.custom_ops import CustomOpDef
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad

from normscope.errors import ConfigError, TransformError

_TRACING_MODES = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)  # torch.export, make_fx

Backend = Literal["reference", "torch", "fused", "operator"]
"""An `Implementation`, where "operator" is the fused kernel as an operator for torch.compile and torch.export."""

SUPPORTED_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""Input dtypes of the kernels. Half-precision inputs are converted to float32 first."""


Implementation = Literal["reference", "torch", "fused"]
"""The readable reference; PyTorch's own fused operator; the numba kernel. See `normscope.ops.registry`."""


def _forced_by_environment() -> Implementation | None:
    chosen = os.environ.get("NORMSCOPE_KERNELS")
    if chosen is not None and chosen not in get_args(Implementation):
        known = ", ".join(get_args(Implementation))
        raise ConfigError(f"invalid environment variable NORMSCOPE_KERNELS={chosen!r}; choose one of {known}")
    return cast(Implementation | None, chosen)


_forced = _forced_by_environment()
_enabled = True  # until a kernel fails
_contexts: list[Implementation] = []  # the active `use_kernels` contexts, over all threads
_lock = threading.Lock()
_MAY_FUSE = (None, "fused")


def forced() -> Implementation | None:
    """Return the implementation that the environment or `use_kernels` asks for; None for the registry's choice."""
    return _contexts[-1] if _contexts else _forced


def select_backend(*tensors: Tensor | None) -> Backend:
    """Select the backend for an operation on these tensors. Called before every layer, so it must be fast."""
    if not _enabled or (_contexts[-1] if _contexts else _forced) not in _MAY_FUSE:
        return "reference"
    compiling = torch.compiler.is_dynamo_compiling()
    for x in tensors:
        if x is None:
            continue
        kind = type(x)
        if kind is not Tensor and kind is not nn.Parameter and not _is_fake_tensor(x, compiling):
            return "reference"
        if not x.is_cpu:
            return "reference"
    if is_function_transform_active() or torch._C._get_tracing_state() is not None:  # torch.func, torch.jit.trace
        return "reference"
    if compiling:
        return "operator"
    if torch._C._len_torch_dispatch_stack():  # other modes, such as a FLOP counter, need torch's operations
        return "operator" if any(torch._C._get_dispatch_mode(mode) for mode in _TRACING_MODES) else "reference"
    return "fused"


def is_plain(x: Tensor) -> bool:
    """Return whether x is contiguous float32 on the CPU, with no forced implementation, tracing or transform.

    The common case, for which a norm has a short call.
    """
    return (
        type(x) is Tensor
        and not torch.compiler.is_dynamo_compiling()
        and x.is_cpu
        and x.layout is torch.strided  # a sparse CSR tensor cannot tell whether it is contiguous
        and not x.is_nested  # its shape is an error
        and x.dtype is torch.float32
        and x.is_contiguous()
        and _enabled
        and not _contexts
        and _forced is None
        and forward_ad._current_level < 0
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
        and not torch._C._len_torch_dispatch_stack()
    )


def are_plain(shape: tuple[int, ...] | None, *parameters: Tensor | None) -> bool:
    """Return whether a weight and a bias, if any, are parameters of this shape, contiguous float32 on the CPU."""
    for p in parameters:
        if p is not None and not (
            type(p) is nn.Parameter and p.is_cpu and p.dtype is torch.float32 and p.shape == shape and p.is_contiguous()
        ):
            return False
    return True


def runs_torch_operators(*tensors: Tensor | None) -> bool:
    """Return whether PyTorch's own fused operators are to be used for these tensors, if they compute the same.

    They are on every device but the CPU, where the kernels run, and everywhere if `forced()` is "torch".
    """
    wanted = forced()
    if wanted == "reference" or is_function_transform_active() or torch._C._get_tracing_state() is not None:
        return False
    compiling, off_cpu = torch.compiler.is_dynamo_compiling(), False
    for x in tensors:
        if x is None:
            continue
        if type(x) is not Tensor and type(x) is not nn.Parameter and not _is_fake_tensor(x, compiling):
            return False
        off_cpu = off_cpu or not x.is_cpu
    return off_cpu or wanted == "torch"


def is_function_transform_active() -> bool:
    """Return whether torch.func or forward-mode AD is active, which not all fused torch operations support."""
    return forward_ad._current_level >= 0 or _is_in_torch_func()


def _is_in_torch_func() -> bool:
    return torch._C._are_functorch_transforms_active()


# torch.compile evaluates this once per graph. torch.compiler.assume_constant_result would import the compiler.
_is_in_torch_func._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_exporting_or_tracing() -> bool:
    """Return whether only the forward pass is being recorded: torch.export, torch.jit.trace."""
    exports = getattr(torch.compiler, "is_exporting", None)  # not in every torch version
    return torch._C._get_tracing_state() is not None or (exports is not None and exports())


def _is_fake_tensor(x: Tensor, compiling: bool) -> bool:
    """Return whether x is a fake tensor or is being compiled; the reference rejects what is not a tensor."""
    return isinstance(x, Tensor) and (compiling or isinstance(x, FakeTensor))


def as_operator(name: str, function: Callable[..., Any], schema: str | None = None) -> CustomOpDef:
    """Register a function as a torch operator. Forward-mode AD through it raises an error.

    Operators have no forward-mode formula, and torch would silently use a zero tangent.
    """

    @wraps(function)
    def checked(*args: Any) -> Any:
        if forward_ad._current_level >= 0:
            raise TransformError(
                f"{name} is part of a recorded graph (torch.export), which does not support "
                f"forward-mode differentiation (torch.func.jvp)\nfix: use the module itself"
            )
        return function(*args)

    return torch.library.custom_op(name, checked, mutates_args=(), schema=schema)


@contextmanager
def use_kernels(implementation: Implementation) -> Iterator[None]:
    """Context manager that uses one implementation wherever it applies, in all threads."""
    if implementation not in get_args(Implementation):
        raise ConfigError(f"use_kernels({implementation!r}): choose one of {', '.join(get_args(Implementation))}")
    with _lock:
        _contexts.append(implementation)
    try:
        yield
    finally:
        with _lock:
            del _contexts[len(_contexts) - 1 - _contexts[::-1].index(implementation)]  # the innermost of its kind


def reference_kernels() -> AbstractContextManager[None]:
    """Context manager that uses the reference implementation of every operation, in all threads."""
    return use_kernels("reference")


def disable_kernels(error: Exception) -> None:
    """Disable the kernels, with one warning."""
    global _enabled
    if isinstance(error, MemoryError):
        raise error
    if _enabled:
        _enabled = False
        warnings.warn(
            f"the fused kernels are not available ({type(error).__name__}: {error}); the same results are computed "
            f"in plain torch, more slowly",
            RuntimeWarning,
            stacklevel=3,
        )
