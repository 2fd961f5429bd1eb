"""Which form computes a norm: a fused kernel where one fits, else the readable steps. Both give the same numbers.

A fused kernel runs on plain float32 tensors of the CPU, in eager mode. Everything else, such as other devices and
types, torch.compile and torch.func, takes the readable steps. `NORMSCOPE_KERNELS=steps` in the environment, or
`with only_steps():`, turns the kernels off.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor, nn

from normscope.kernels import normalize as steps
from normscope.kernels.normalize import Affine, Statistic
from normscope.scope import Plan

_fused = os.environ.get("NORMSCOPE_KERNELS", "fused") != "steps"
_rows: ModuleType | None = None


def normalize(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None
) -> Tensor:
    """Normalize by the input's own moments, in the fastest form there is for it."""
    if _fused and _nobody_records() and all(_is_plain(t) for t in (x, affine.weight, affine.bias, mask)):
        rows = _row_kernels()
        if rows is not None and rows.fits(x, plan, affine, mask):
            y: Tensor = rows.normalize(x, plan, statistic=statistic, eps=eps, affine=affine, mask=mask)
            return y
    y, _ = steps.by_batch(x, plan, statistic=statistic, eps=eps, affine=affine, mask=mask)
    return y


@contextmanager
def only_steps() -> Iterator[None]:
    """Within this, no fused kernel runs."""
    global _fused
    before, _fused = _fused, False
    try:
        yield
    finally:
        _fused = before


def _nobody_records() -> bool:
    """Whether this is plain eager mode, where what is done to memory behind torch's back is missed by no one."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0  # make_fx, fake tensors
        and torch.autograd.forward_ad._current_level < 0
        and torch._C._get_tracing_state() is None  # torch.jit.trace
    )


def _is_plain(x: Tensor | None) -> bool:
    """Whether the tensor's memory is there to be read; what is no tensor has none to read, and is refused elsewhere."""
    return not isinstance(x, Tensor) or (
        type(x) in (Tensor, nn.Parameter)
        and x.device.type == "cpu"
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)  # vmap, jacrev
    )


def _row_kernels() -> ModuleType | None:
    """The row kernels; None, after one notice, where numba is missing or fails."""
    global _rows, _fused
    if _rows is None:
        try:
            from normscope.kernels import rows
        except Exception as error:  # whatever numba's reason may be, the steps do without it
            _fused = False
            warnings.warn(
                f"the fused kernels are not available ({type(error).__name__}: {error}); the same results are computed "
                f"in plain torch, more slowly",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        _rows = rows
    return _rows
