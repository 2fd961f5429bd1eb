"""How the loops are compiled, and how they reach a tensor's memory.

- Sums may be reordered and multiplications fused with additions, which is what lets them run in vectors. Nothing is
  assumed about NaN and infinity, which go through as they would in torch.
- Compiled code is kept on disk between processes. Where no folder can be written, it is compiled anew.
- A kernel takes addresses, not arrays: turning a tensor into a numpy array costs more than a small kernel does.
"""

import types as python
from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.extending import intrinsic

Function = Callable[..., Any]


def compiled(function: Function) -> Function:
    """Compile a loop for one thread; Python's other threads may run beside it."""
    return _compile(function, parallel=False)


def compiled_twice(function: Function) -> tuple[Function, Function]:
    """Compile a loop over `prange` for one thread, and for many.

    The loop must not write to an array itself, only call a `compiled` function that does: numba takes an array that
    is only written in a shared loop for dead, and leaves the writes out.
    """
    many = python.FunctionType(function.__code__, function.__globals__, f"{function.__name__}_by_many")
    many.__qualname__ = many.__name__  # the name under which it is kept on disk
    return compiled(function), _compile(many, parallel=True)


def _compile(function: Function, *, parallel: bool) -> Function:
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract"}, "parallel": parallel}
    try:
        loop: Function = numba.njit(function, cache=True, **options)
    except RuntimeError:  # there is no folder that the code could be kept in
        loop = numba.njit(function, **options)
    return loop


def _numbers_at(kind: Any) -> Any:
    def at(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return intrinsic(at)


float32_at = _numbers_at(types.float32)
"""An address as a pointer, for `numba.carray`."""
bool_at = _numbers_at(types.boolean)
