"""Register-tiled products of small matrices that are in the cache.

A tile of the result is ROWS x PANEL numbers, kept in registers. Each step multiplies ROWS numbers of one matrix with
PANEL adjacent numbers of the other. This is written with explicit LLVM vectors: from loops over arrays, LLVM would keep
the sums in memory. Each result is one chain of fused multiply-adds in the order of the steps, for any vector width.
"""

from typing import Any

from llvmlite import binding, ir
from numba import types

from normscope.ops.fused.compiler import compiled, instruction

_FEATURES = binding.get_host_cpu_features()
# A vector is a register; two make a panel. The tile's sums take half of the registers that there are, 32 or 16.
LANES = 16 if _FEATURES.get("avx512f") else 8 if _FEATURES.get("avx2") else 4
ROWS = 4 if LANES == 8 else 8
PANEL = 2 * LANES

_INT64, _FLOAT = ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_LANE = ir.IntType(32)


def _number_at(builder: Any, address: Any, index: Any) -> Any:
    return builder.gep(builder.inttoptr(address, _FLOAT.as_pointer()), [index])


def _load(builder: Any, address: Any, index: Any) -> Any:
    return builder.load(builder.bitcast(_number_at(builder, address, index), _VECTOR.as_pointer()), align=4)


def _store(builder: Any, vector: Any, address: Any, index: Any) -> None:
    builder.store(vector, builder.bitcast(_number_at(builder, address, index), _VECTOR.as_pointer()), align=4)


def _everywhere(builder: Any, number: Any) -> Any:
    """Broadcast a number to all lanes of a vector."""
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, _LANE(0))
    return builder.shuffle_vector(
        one, ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.VectorType(_LANE, LANES), None)
    )


def _fma(module: Any) -> Any:
    name = f"llvm.fma.v{LANES}f32"
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), name)


def _tile_product(adds: bool) -> Any:
    @instruction(types.void, *[types.int64] * 8)
    def product(
        builder: Any, a: Any, row: Any, step: Any, b: Any, width: Any, c: Any, breadth: Any, steps: Any
    ) -> None:
        fma, tile = _fma(builder.module), [(i, v) for i in range(ROWS) for v in range(0, PANEL, LANES)]
        offsets = [builder.add(builder.mul(breadth, _INT64(i)), _INT64(v)) for i, v in tile]
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.cbranch(builder.icmp_signed(">", steps, _INT64(0)), loop, after)

        builder.position_at_end(loop)
        t, sums = builder.phi(_INT64), [builder.phi(_VECTOR) for _ in tile]
        along, down = builder.mul(t, step), builder.mul(t, width)
        ours = [
            _everywhere(builder, builder.load(_number_at(builder, a, builder.add(along, builder.mul(row, _INT64(i))))))
            for i in range(ROWS)
        ]
        theirs = {v: _load(builder, b, builder.add(down, _INT64(v))) for v in range(0, PANEL, LANES)}
        results = [builder.call(fma, [ours[i], theirs[v], so_far]) for (i, v), so_far in zip(tile, sums, strict=True)]
        following = builder.add(t, _INT64(1))
        builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)

        builder.position_at_end(after)
        totals = [builder.phi(_VECTOR) for _ in tile]
        zero = ir.Constant(_VECTOR, None)
        t.add_incoming(_INT64(0), before)
        t.add_incoming(following, loop)
        for so_far, total, result in zip(sums, totals, results, strict=True):
            for value in (so_far, total):
                value.add_incoming(zero, before)
                value.add_incoming(result, loop)
        for at, total in zip(offsets, totals, strict=True):
            _store(builder, builder.fadd(_load(builder, c, at), total) if adds else total, c, at)

    return product


times = _tile_product(adds=False)
"""c[i, j] = the sum over t of a[i, t] b[t, j], for a tile of c.

Matrices are given by their addresses. a[i, t] is at offset `i * row + t * step`, b[t, j] at `t * width + j`,
and c[i, j] `i * breadth + j`.
"""
plus_times = _tile_product(adds=True)
"""Same, added to c. The new sums are computed separately, so that long sums have the accuracy of a sum of sums."""


@instruction(types.void, types.int64, types.int64, types.float32)
def scale_panel(builder: Any, x: Any, y: Any, factor: Any) -> None:
    """y = x * factor for PANEL adjacent numbers. LLVM would unroll a loop of fixed length into scalars."""
    factors = _everywhere(builder, factor)
    for v in range(0, PANEL, LANES):
        _store(builder, builder.fmul(_load(builder, x, _INT64(v)), factors), y, _INT64(v))


@instruction(types.void, types.int64)
def invert_panel(builder: Any, x: Any) -> None:
    """Replace PANEL adjacent numbers x with 1 / x."""
    ones = _everywhere(builder, _FLOAT(1.0))
    for v in range(0, PANEL, LANES):
        _store(builder, builder.fdiv(ones, _load(builder, x, _INT64(v))), x, _INT64(v))


@instruction(types.void, *[types.int64] * 4)
def _transpose_square(builder: Any, x: Any, width: Any, y: Any, breadth: Any) -> None:
    """Transpose LANES x LANES numbers by swapping adjacent elements, then pairs, then fours, and so on."""
    rows = [_load(builder, x, builder.mul(width, _INT64(i))) for i in range(LANES)]
    distance = 1
    while distance < LANES:
        upper = [j if not j & distance else LANES + j - distance for j in range(LANES)]
        lower = [j + distance if not j & distance else LANES + j for j in range(LANES)]
        for i in range(LANES):
            if not i & distance:
                pair = rows[i], rows[i + distance]
                for at, lanes in ((i, upper), (i + distance, lower)):
                    order = ir.Constant(ir.VectorType(_LANE, LANES), [_LANE(lane) for lane in lanes])
                    rows[at] = builder.shuffle_vector(*pair, order)
        distance *= 2
    for i in range(LANES):
        _store(builder, rows[i], y, builder.mul(breadth, _INT64(i)))


@compiled
def transpose(x, stride, y, rows, columns):
    """Transpose x (rows, columns), with row stride `stride`, to y (columns, rows). Sizes are multiples of LANES."""
    for i in range(0, rows, LANES):
        for j in range(0, columns, LANES):
            _transpose_square(x + 4 * (i * stride + j), stride, y + 4 * (j * rows + i), rows)
