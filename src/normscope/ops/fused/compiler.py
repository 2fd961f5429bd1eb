"""Compilation of the kernels, and access to tensor memory.

- Sums may be reordered and multiply-adds contracted, which enables vectorization. NaN and infinity behave as in torch.
- Compiled code is cached on disk. If no folder is writable, it is compiled in every process. Either way it gives the
  same bits (`code_library`), and a change of any kernel is noticed (`code_cache`).
- Kernels take addresses, not arrays: converting a tensor to a numpy array costs more than a small kernel.
"""

import platform
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, cast

import numba
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.extending import intrinsic

from normscope.ops.fused.code_cache import KernelCache
from normscope.ops.fused.code_library import KernelCompiler

Function = Callable[..., Any]

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "fastmath": {"reassoc", "contract"},
    "error_model": "numpy",
    "pipeline_class": KernelCompiler,
    "no_cfunc_wrapper": True,  # nothing calls a kernel from C
}


def compiled(function: Function) -> Function:
    """Compile a function with numba, without the GIL.

    If its name begins with an underscore, only other kernels can call it: numba then compiles neither the conversion of
    Python's arguments nor machine code, which takes a quarter of the time.
    """
    loop = numba.njit(function, **OPTIONS, no_cpython_wrapper=function.__name__.startswith("_"))
    with suppress(RuntimeError):  # no writable cache folder
        loop._cache = KernelCache(function)  # what njit(cache=True) does, with numba's own class
    return cast("Function", loop)


def uncached(function: Function) -> Function:
    """Compile a function that numba cannot cache: one made by another function, or a generator. Callers include it."""
    loop: Function = numba.njit(function, **OPTIONS, no_cpython_wrapper=True)
    return loop


def instruction(result: Any, *arguments: Any) -> Callable[[Function], Any]:
    """Return a decorator that makes a function that emits LLVM IR, (builder, *values) -> value, callable in kernels."""

    def decorate(emit: Function) -> Any:
        @wraps(emit)
        def typed(_: Any, *given: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                value = emit(builder, *values)
                return context.get_dummy_value() if value is None else value

            return result(*arguments), generate

        return intrinsic(typed)

    return decorate


@instruction(types.void)
def vectorize(builder: Any) -> None:
    """Call as the first line of an innermost function to vectorize its loops.

    Marks the pointer arguments as noalias, without which LLVM tests each pair or gives up; prefers 512-bit vectors;
    and prevents inlining, so that these attributes hold.
    """
    function = builder.function
    function.attributes.add("noinline")
    set.add(function.attributes, '"prefer-vector-width"="512"')  # a string attribute, which llvmlite's `add` rejects
    for argument in function.args:
        if argument.name.startswith("arg.") and isinstance(argument.type, ir.PointerType):
            argument.add_attribute("noalias")


def _pointer_to(kind: Any) -> Any:
    def at(_: Any, address: Any, index: Any = 0) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            bytes_before = builder.mul(values[1], ir.Constant(values[1].type, kind.bitwidth // 8))
            return builder.inttoptr(builder.add(values[0], bytes_before), context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64, types.int64), generate

    return intrinsic(at)


float32_at = _pointer_to(types.float32)
"""Convert an address, or that of the index-th number after it, to a pointer that can be indexed."""
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

    @instruction(types.int64)
    def workspace(builder: Any) -> Any:
        with builder.goto_entry_block():
            numbers = builder.alloca(ir.ArrayType(ir.DoubleType(), count))
        numbers.align = 64
        return builder.ptrtoint(numbers, ir.IntType(64))

    return workspace


def _has_fma() -> bool:
    if numba.config.CPU_FEATURES is not None:  # kernels are compiled for other features than the host's
        return "+fma" in numba.config.CPU_FEATURES.split(",")
    return bool(get_host_cpu_features().get("fma", platform.machine() not in ("x86_64", "AMD64")))


HAS_FMA = _has_fma()
"""Whether the CPU has fused multiply-adds: all but x86 CPUs from before 2013."""


@instruction(types.float32, types.float32, types.float32, types.float32)
def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Fused multiply-add, a * b + c rounded once, which the compiler does not reorder.

    In a vectorized loop on a CPU without the instruction, it is rounded twice.
    """
    return builder.fma(a, b, c)
