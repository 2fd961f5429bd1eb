"""The moments of many numbers in one pass over memory, and what each column of a matrix has at most.

Numbers are taken by the piece. A piece fits the cache, so it can be read twice: for its mean, and for the powers of the
distances from it. Pieces are put together by the formulas for the moments of a union (Pébay 2008, "Formulas for Robust,
One-Pass Parallel Computation of Covariances and Arbitrary-Order Statistical Moments"), in an order that does not
depend on the number of threads.
"""

import numpy as np

from normscope.ops.fused.compiler import compiled, float32_at, float64_at, int32_at, stack_buffer, vectorize
from normscope.ops.fused.parallel import run_parallel

(COUNT, MEAN, SECOND, THIRD, FOURTH, LEAST, GREATEST, ZEROS, UNREAL) = range(FIGURES := 9)
"""What is found: how many numbers are finite, their mean, the sums of the powers of the distances from it, the least
and the greatest, how many are zero, and how many are infinite or not numbers."""

_CHUNK = 4096
_EXPONENT, _MAGNITUDE = np.int32(0x7F800000), np.int32(0x7FFFFFFF)
_SIGN, _LOWEST, _HIGHEST = np.int32(31), np.int32(-0x7F800000), np.int32(0x7F800000)
_bits_of_two = stack_buffer(1)


@compiled
def _count(bits, count):
    """Count zeros and non-finite values; find the minimum and maximum, as ordered bit patterns."""
    vectorize()
    zeros, unreal, least, greatest = np.int32(0), np.int32(0), _HIGHEST, _LOWEST
    for j in range(count):
        size = bits[j] & _MAGNITUDE
        zeros += np.int32(size == 0)
        unreal += np.int32(size >= _EXPONENT)
        ordered = np.int32((size ^ (bits[j] >> _SIGN)) - (bits[j] >> _SIGN))  # minus the size where the sign is set
        least, greatest = min(least, ordered), max(greatest, ordered)
    return zeros, unreal, least, greatest


@compiled
def _number(ordered):
    """Convert an ordered bit pattern back to a number."""
    workspace = _bits_of_two()
    int32_at(workspace)[0] = abs(ordered)
    return -np.float64(float32_at(workspace)[0]) if ordered < 0 else np.float64(float32_at(workspace)[0])


@compiled
def _sum(x, count):
    vectorize()
    total = 0.0
    for j in range(count):
        total += np.float64(x[j])
    return total


@compiled
def _powers(x, mean, count):
    vectorize()
    second, third, fourth = 0.0, 0.0, 0.0
    for j in range(count):
        off = np.float64(x[j]) - mean
        square = off * off
        second += square
        third += square * off
        fourth += square * square
    return second, third, fourth


@compiled
def _finite_powers(x, bits, count, finite, into):
    """Compute the power sums and extremes of the finite values of a chunk that has non-finite ones."""
    total = 0.0
    for j in range(count):
        if bits[j] & _MAGNITUDE < _EXPONENT:
            value = np.float64(x[j])
            total += value
            into[LEAST], into[GREATEST] = min(into[LEAST], value), max(into[GREATEST], value)
    mean = total / finite if finite else 0.0
    second, third, fourth = 0.0, 0.0, 0.0
    for j in range(count):
        if bits[j] & _MAGNITUDE < _EXPONENT:
            off = np.float64(x[j]) - mean
            second += off * off
            third += off * off * off
            fourth += off * off * off * off
    return mean, second, third, fourth


@compiled
def _join(into, n, mean, second, third, fourth):
    """Merge the moments of n more values."""
    m = into[COUNT]
    total = m + n
    if n == 0:
        return
    off = mean - into[MEAN]
    step = off / total
    into[FOURTH] += (
        fourth
        + off * step * step * step * m * n * (m * m - m * n + n * n)
        + 6 * step * step * (m * m * second + n * n * into[SECOND])
        + 4 * step * (m * third - n * into[THIRD])
    )
    into[THIRD] += third + off * step * step * m * n * (m - n) + 3 * step * (m * second - n * into[SECOND])
    into[SECOND] += second + off * step * m * n
    into[MEAN] += n * step
    into[COUNT] = total


@compiled
def _measure_part(part, parts, x, count, blocks, into):
    """Compute the moments of each block of one thread; blocks do not depend on the number of threads."""
    chunks = (count + _CHUNK - 1) // _CHUNK
    for block in range(blocks * part // parts, blocks * (part + 1) // parts):
        found = float64_at(into + 8 * FIGURES * block)
        for chunk in range(chunks * block // blocks, chunks * (block + 1) // blocks):
            n = min(_CHUNK, count - chunk * _CHUNK)
            at = x + 4 * chunk * _CHUNK
            zeros, unreal, least, greatest = _count(int32_at(at), n)
            found[ZEROS] += zeros
            found[UNREAL] += unreal
            if unreal:
                mean, second, third, fourth = _finite_powers(float32_at(at), int32_at(at), n, n - unreal, found)
            else:
                found[LEAST] = min(found[LEAST], _number(least))
                found[GREATEST] = max(found[GREATEST], _number(greatest))
                mean = _sum(float32_at(at), n) / n
                second, third, fourth = _powers(float32_at(at), mean, n)
            _join(found, n - unreal, mean, second, third, fourth)


@compiled
def _unite(blocks, into):
    """Merge the moments of all blocks into the first row."""
    total = float64_at(into)
    for block in range(1, blocks):
        found = float64_at(into + 8 * FIGURES * block)
        total[ZEROS] += found[ZEROS]
        total[UNREAL] += found[UNREAL]
        total[LEAST] = min(total[LEAST], found[LEAST])
        total[GREATEST] = max(total[GREATEST], found[GREATEST])
        _join(total, found[COUNT], found[MEAN], found[SECOND], found[THIRD], found[FOURTH])


@compiled
def measure(threads, fork, number, team, x, count, blocks, into):
    """The figures of `count` float32 numbers at x, in the first of the rows that each block has one of.

    The caller has filled the rows before: the least of no numbers is infinite.
    """
    run_parallel(threads, fork, number, team, _measure_part, (x, count, blocks, into))
    _unite(blocks, into)


@compiled
def _add_row(x, squares, largest, active, d):
    vectorize()
    for j in range(d):
        value = x[j]
        size = abs(value)
        squares[j] += np.float64(value) * np.float64(value)
        largest[j] = size if size > largest[j] else largest[j]
        active[j] += np.float32(value != 0)


@compiled
def columns(x, rows, d, squares, largest, active):
    """Accumulate per column the sum of squares (float64), the maximum magnitude and the nonzero count (float32)."""
    for r in range(rows):
        _add_row(float32_at(x + 4 * r * d), float64_at(squares), float32_at(largest), float32_at(active), d)
