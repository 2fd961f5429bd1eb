"""Whether a fused kernel may run, and in which form it is called.

`NORMSCOPE_KERNELS=reference` in the environment, or `with reference_kernels():`, turns the
kernels off. So does a numba that is
missing or fails, with one notice: everything is then computed by its readable form, and only the time differs.
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._library.custom_ops import CustomOpDef
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad

from normscope.errors import ConfigError, TransformError

_TRACING_MODES = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)  # of torch.export, make_fx

Backend = Literal["reference", "fused", "operator"]
"""The readable form; the kernel itself; or the kernel as an operator that torch.compile and torch.export know."""

SUPPORTED_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""What the kernels take. They compute in float32 and more; the halves are widened first."""


def _enabled_by_environment() -> bool:
    chosen = os.environ.get("NORMSCOPE_KERNELS", "fused")
    if chosen not in ("fused", "reference"):
        raise ConfigError(f"NORMSCOPE_KERNELS={chosen!r} in the environment is not known; choose fused or reference")
    return chosen == "fused"


_enabled = _enabled_by_environment()
_reference_depth = 0  # how many `reference_kernels` there are, in all threads
_lock = threading.Lock()


def select_backend(*tensors: Tensor | None) -> Backend:
    """How an operation on these tensors is to be computed. Asked before every small layer, so it is short."""
    if not _enabled or _reference_depth:
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
    if (
        is_function_transform_active() or torch._C._get_tracing_state() is not None
    ):  # torch.func, compiled or not; torch.jit.trace
        return "reference"
    if compiling:
        return "operator"
    if torch._C._len_torch_dispatch_stack():  # others, such as a counter of FLOPs, want to see torch's own operations
        return "operator" if any(torch._C._get_dispatch_mode(mode) for mode in _TRACING_MODES) else "reference"
    return "fused"


def is_function_transform_active() -> bool:
    """Whether torch.func or forward-mode differentiation is at work, which not all of torch's fast operations know."""
    return forward_ad._current_level >= 0 or _is_in_torch_func()


def _is_in_torch_func() -> bool:
    return torch._C._are_functorch_transforms_active()


# torch.compile asks once, and makes another graph where the answer would be another. This is what
# torch.compiler.assume_constant_result does, which loads the compiler first.
_is_in_torch_func._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_exporting_or_tracing() -> bool:
    """Whether only the forward pass is recorded, to be run and differentiated later: torch.export, torch.jit.trace."""
    exports = getattr(torch.compiler, "is_exporting", None)  # not in every torch
    return torch._C._get_tracing_state() is not None or (exports is not None and exports())


def _is_fake_tensor(x: Tensor, compiling: bool) -> bool:
    """Whether it stands for a plain tensor; what is no tensor at all the readable form will refuse."""
    return isinstance(x, Tensor) and (compiling or isinstance(x, FakeTensor))


def as_operator(name: str, function: Callable[..., Any]) -> CustomOpDef:
    """A kernel as an operator for graphs. Where a graph is differentiated forwards, it is refused.

    An operator has no rule for that, and torch would take its tangent for zero without a word.
    """

    @wraps(function)
    def checked(*args: Any) -> Any:
        if forward_ad._current_level >= 0:
            raise TransformError(
                f"{name} is part of a graph that was recorded before, as torch.export does, and cannot be "
                f"differentiated forwards (torch.func.jvp)\nfix: use the module itself"
            )
        return function(*args)

    return torch.library.custom_op(name, checked, mutates_args=())


@contextmanager
def reference_kernels() -> Iterator[None]:
    """Within this, no fused kernel runs, in any thread."""
    global _reference_depth
    with _lock:
        _reference_depth += 1
    try:
        yield
    finally:
        with _lock:
            _reference_depth -= 1


def try_kernel(kernel: Callable[..., Any], *arguments: Any) -> bool:
    """Run a kernel; False, after one notice and for good, where numba fails to compile it."""
    try:
        kernel(*arguments)
    except Exception as error:  # whatever numba's reason may be, the readable form does without it
        disable_kernels(error)
        return False
    return True


def disable_kernels(error: Exception) -> None:
    """Turn the kernels off, and say so once."""
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
