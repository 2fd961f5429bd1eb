"""Parallel kernels on torch's own OpenMP threads.

numba's thread pool would compete with torch's: each pool spins for a while after its work, on cores that the other
needs. So kernels run on the OpenMP library that torch has loaded, whose threads are already awake.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from normscope.ops.fused.compiler import compiled

_INT64, _INT32, _BYTES = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()


@compiled
def share(part, parts, count):
    """Return the range of `count` rows, blocks or other tasks that one part of the threads processes."""
    return range(count * part // parts, count * (part + 1) // parts)


@intrinsic
def run_parallel(typing: Any, pool: Any, body: Any, arguments: Any) -> Any:
    """Call `body(part, parts, *arguments)` for each part, one per thread, and wait for all.

    Bodies are named `..._part`. `pool` is a `normscope.ops.threads.ThreadPool`. If OpenMP provides fewer threads, some
    run several parts. With one thread, the body is called directly.
    """
    kinds = (types.int64, types.int64, *arguments.types)
    body.dispatcher.get_call_template(kinds, {})  # compiles it

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        threads, fork, number, team = (builder.extract_value(values[0], i) for i in range(4))
        packed = values[2]
        compiled = body.dispatcher.overloads[kinds]
        context.active_code_library.add_linking_library(compiled.library)
        function = context.declare_function(builder.module, compiled.fndesc)

        def call(at: Any, part: Any, parts: Any, packed: Any) -> None:
            given = [at.extract_value(packed, i) for i in range(len(arguments.types))]
            result = compiled.signature.return_type
            context.call_conv.call_function(at, function, result, kinds, [part, parts, *given])

        single = builder.icmp_signed("<=", threads, ir.Constant(_INT64, 1))
        with builder.if_else(single) as (alone, together):
            with alone:
                call(builder, ir.Constant(_INT64, 0), ir.Constant(_INT64, 1), packed)
            with together:
                frame = ir.LiteralStructType([_INT64, _INT64, _INT64, packed.type])
                task = _task(builder.module, frame, call)
                content = ir.Constant(frame, ir.Undefined)
                for i, value in enumerate((number, team, threads, packed)):
                    content = builder.insert_value(content, value, i)
                slot = cgutils.alloca_once(builder, frame)
                builder.store(content, slot)
                kind = ir.FunctionType(ir.VoidType(), [task.type, _BYTES, _INT32, _INT32])
                start = builder.inttoptr(fork, kind.as_pointer())
                data, count = builder.bitcast(slot, _BYTES), builder.trunc(threads, _INT32)
                builder.call(start, [task, data, count, ir.Constant(_INT32, 0)])
        return context.get_dummy_value()

    return types.void(pool, body, arguments), generate


def _task(module: Any, frame: Any, call: Any) -> Any:
    """Build the function that each thread runs: it calls the body for each of the thread's parts."""
    task = ir.Function(module, ir.FunctionType(ir.VoidType(), [_BYTES]), name=module.get_unique_name("task"))
    task.linkage = "internal"
    builder = ir.IRBuilder(task.append_basic_block("entry"))
    content = builder.load(builder.bitcast(task.args[0], frame.as_pointer()))
    ask = ir.FunctionType(_INT32, []).as_pointer()
    number, team = (
        builder.sext(builder.call(builder.inttoptr(builder.extract_value(content, i), ask), []), _INT64) for i in (0, 1)
    )
    parts, packed = builder.extract_value(content, 2), builder.extract_value(content, 3)
    with cgutils.for_range_slice(builder, number, parts, team, _INT64) as (part, _):
        call(builder, part, parts, packed)
    builder.ret_void()
    return task
