"""Compilation of the kernels, and access to tensor memory.

- Sums may be reordered and multiply-adds contracted, which enables vectorization. NaN and infinity behave as in torch.
- Compiled code is cached on disk. If no folder is writable, it is compiled in every process.
- Kernels take addresses, not arrays: converting a tensor to a numpy array costs more than a small kernel.
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
    """Compile a function with numba, without the GIL."""
    try:
        loop: Function = numba.njit(function, cache=True, **OPTIONS)
    except RuntimeError:  # no writable cache folder
        loop = numba.njit(function, **OPTIONS)
    return loop


def uncached(function: Function) -> Function:
    """Compile a function that is made by another function, which numba cannot cache; its cached callers include it."""
    loop: Function = numba.njit(function, **OPTIONS)
    return loop


@intrinsic
def vectorize(_: Any) -> Any:
    """Call as the first line of an innermost function to vectorize its loops.

    Marks the pointer arguments as noalias, without which LLVM tests each pair or gives up; prefers 512-bit vectors;
    and prevents inlining, so that these attributes hold.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.function
        function.attributes.add("noinline")
        set.add(
            function.attributes, '"prefer-vector-width"="512"'
        )  # a string attribute, which llvmlite's `add` rejects
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
"""Convert an address to a pointer that can be indexed."""
float64_at = _pointer_to(types.float64)
int64_at = _pointer_to(types.int64)
byte_at = _pointer_to(types.uint8)
int8_at = _pointer_to(types.int8)
int32_at = _pointer_to(types.int32)
uint32_at = _pointer_to(types.uint32)


def stack_buffer(count: int) -> Any:
    """Return a function that allocates `count` float64 numbers on the stack and returns their address.

    The memory is valid until the calling function returns.
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
    """Fused multiply-add, a * b + c rounded once, which the compiler does not reorder."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, a, a), generate
