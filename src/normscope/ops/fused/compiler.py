"""How the loops are compiled, and how they reach a tensor's memory.

- Sums may be reordered and multiplications fused with additions, which is what lets them run in vectors. Nothing is
  assumed about NaN and infinity, which go through as they would in torch.
- Compiled code is kept on disk between processes. Where no folder can be written, it is compiled anew.
- A kernel takes addresses, not arrays: turning a tensor into a numpy array costs more than a small kernel does.
"""

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Function = Callable[..., Any]

OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract"}, "error_model": "numpy"}


def compiled(function: Function) -> Function:
    """Compile a function for one thread; Python's other threads may run beside it."""
    try:
        loop: Function = numba.njit(function, cache=True, **OPTIONS)
    except RuntimeError:  # there is no folder that the code could be kept in
        loop = numba.njit(function, **OPTIONS)
    return loop


@intrinsic
def vectorize(_: Any) -> Any:
    """The first line of an innermost function: let its loops run in the widest vectors that there are.

    It promises that what its pointers point to does not overlap, without which LLVM would test each pair or give up;
    asks for vectors of 512 bits, which LLVM avoids on processors of the past; and keeps the function to itself, so
    that all this holds where it is called from.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.function
        function.attributes.add("noinline")
        set.add(function.attributes, '"prefer-vector-width"="512"')  # a string, which llvmlite's own `add` refuses
        for argument in function.args:
            if argument.name.startswith("arg.") and isinstance(argument.type, ir.PointerType):
                argument.add_attribute("noalias")
        return context.get_dummy_value()

    return types.void(), generate


def _pointer_to(kind: Any) -> Any:
    def at(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return intrinsic(at)


float32_at = _pointer_to(types.float32)
"""The numbers at an address, to be read and written by their index."""
float64_at = _pointer_to(types.float64)
int64_at = _pointer_to(types.int64)
byte_at = _pointer_to(types.uint8)
int8_at = _pointer_to(types.int8)
int32_at = _pointer_to(types.int32)
uint32_at = _pointer_to(types.uint32)


def stack_buffer(count: int) -> Any:
    """Make a function that gives the address of so many float64 numbers on the stack of the thread that calls it.

    They last as long as the function that asked for them.
    """

    @intrinsic
    def workspace(_: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            with builder.goto_entry_block():
                numbers = builder.alloca(ir.ArrayType(ir.DoubleType(), count))
            numbers.align = 64
            return builder.ptrtoint(numbers, ir.IntType(64))

        return types.int64(), generate

    return workspace


@intrinsic
def fma(_: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once and left as it is written: other sums may be reordered, this one may not."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, a, a), generate
