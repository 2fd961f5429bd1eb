"""Parallel elementwise kernels over dense tensors.

All kernels have the signature `loop(first, last, a, b, c, d, e)`: the elements from `first` to `last` of up to five
tensors, passed as addresses. Kernels are passed by address, so that each is compiled on first use, and the parallel
driver is compiled only once.
"""

from functools import cached_property
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from normscope.ops.fused.compiler import OPTIONS, Function, compiled
from normscope.ops.fused.parallel import run_parallel

_FORM = types.void(*[types.int64] * 7)
_STRIDE = 64  # numbers: a thread's share begins where a cache line and a round of the vectorised loop do


class ElementwiseKernel:
    """A kernel that is compiled when its address is first requested."""

    def __init__(self, function: Function) -> None:
        self._function = function

    @cached_property
    def address(self) -> int:
        try:
            self._compiled = numba.cfunc(_FORM, cache=True, **OPTIONS)(self._function)  # kept, for it owns the code
        except RuntimeError:  # there is no folder that the code could be kept in
            self._compiled = numba.cfunc(_FORM, **OPTIONS)(self._function)
        address: int = self._compiled.address
        return address


@intrinsic
def _call(_: Any, address: Any, first: Any, last: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [number] * 7)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate


@compiled
def _part(part, parts, loop, a, b, c, d, e, count):
    rounds = -(-count // _STRIDE)
    first, last = rounds * part // parts * _STRIDE, rounds * (part + 1) // parts * _STRIDE
    _call(loop, first, min(last, count), a, b, c, d, e)


@compiled
def run(threads, fork, number, team, loop, a, b, c, d, e, count):
    """Run the kernel at an address over `count` elements."""
    run_parallel(threads, fork, number, team, _part, (loop, a, b, c, d, e, count))
