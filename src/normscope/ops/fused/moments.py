"""Moments of many numbers in one pass over memory, and statistics of the columns of a matrix.

Numbers are processed in chunks that fit the cache, so that each can be read twice: for its mean, and for the powers of
the deviations from it. Chunks are merged by the formulas of Pébay 2008, "Formulas for Robust, One-Pass Parallel
Computation of Covariances and Arbitrary-Order Statistical Moments", in an order that does not depend on the number of
threads.
"""

import numpy as np

from normscope.ops.fused.compiler import compiled, float32_at, float64_at, int32_at, stack_buffer, vectorize
from normscope.ops.fused.parallel import run_parallel, share

(COUNT, MEAN, SECOND, THIRD, FOURTH, MINIMUM, MAXIMUM, ZEROS, NON_FINITE) = range(NUM_FIELDS := 9)
"""Fields of a result: count of finite values, mean, sums of powers of the deviations, minimum, maximum, count of zeros,
count of non-finite values."""

_CHUNK = 4096
_EXPONENT, _MAGNITUDE = np.int32(0x7F800000), np.int32(0x7FFFFFFF)
_SIGN, _LOWEST, _HIGHEST = np.int32(31), np.int32(-0x7F800000), np.int32(0x7F800000)
_bits_of_two = stack_buffer(1)


@compiled
def _count(bits, count):
    """Count zeros and non-finite values; find the minimum and maximum, as ordered bit patterns."""
    vectorize()
    zeros, non_finite, minimum, maximum = np.int32(0), np.int32(0), _HIGHEST, _LOWEST
    for j in range(count):
        size = bits[j] & _MAGNITUDE
        zeros += np.int32(size == 0)
        non_finite += np.int32(size >= _EXPONENT)
        ordered = np.int32((size ^ (bits[j] >> _SIGN)) - (bits[j] >> _SIGN))  # minus the size where the sign is set
        minimum, maximum = min(minimum, ordered), max(maximum, ordered)
    return zeros, non_finite, minimum, maximum


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
def _finite_powers(x, bits, count, finite, result):
    """Compute the power sums and extremes of the finite values of a chunk that has non-finite ones."""
    total = 0.0
    for j in range(count):
        if bits[j] & _MAGNITUDE < _EXPONENT:
            value = np.float64(x[j])
            total += value
            result[MINIMUM], result[MAXIMUM] = min(result[MINIMUM], value), max(result[MAXIMUM], value)
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
def _merge(result, n, mean, second, third, fourth):
    """Merge the moments of n more values."""
    m = result[COUNT]
    total = m + n
    if n == 0:
        return
    off = mean - result[MEAN]
    step = off / total
    result[FOURTH] += (
        fourth
        + off * step * step * step * m * n * (m * m - m * n + n * n)
        + 6 * step * step * (m * m * second + n * n * result[SECOND])
        + 4 * step * (m * third - n * result[THIRD])
    )
    result[THIRD] += third + off * step * step * m * n * (m - n) + 3 * step * (m * second - n * result[SECOND])
    result[SECOND] += second + off * step * m * n
    result[MEAN] += n * step
    result[COUNT] = total


@compiled
def _measure_part(part, parts, x, count, blocks, result):
    """Compute the moments of each block of one thread; blocks do not depend on the number of threads."""
    chunks = (count + _CHUNK - 1) // _CHUNK
    for block in share(part, parts, blocks):
        found = float64_at(result, NUM_FIELDS * block)
        for chunk in share(block, blocks, chunks):
            n = min(_CHUNK, count - chunk * _CHUNK)
            at = x + 4 * chunk * _CHUNK
            zeros, non_finite, minimum, maximum = _count(int32_at(at), n)
            found[ZEROS] += zeros
            found[NON_FINITE] += non_finite
            if non_finite:
                mean, second, third, fourth = _finite_powers(float32_at(at), int32_at(at), n, n - non_finite, found)
            else:
                found[MINIMUM] = min(found[MINIMUM], _number(minimum))
                found[MAXIMUM] = max(found[MAXIMUM], _number(maximum))
                mean = _sum(float32_at(at), n) / n
                second, third, fourth = _powers(float32_at(at), mean, n)
            _merge(found, np.float64(n - non_finite), mean, second, third, fourth)


@compiled
def _merge_blocks(blocks, result):
    """Merge the moments of all blocks into the first row."""
    total = float64_at(result)
    for block in range(1, blocks):
        found = float64_at(result, NUM_FIELDS * block)
        total[ZEROS] += found[ZEROS]
        total[NON_FINITE] += found[NON_FINITE]
        total[MINIMUM] = min(total[MINIMUM], found[MINIMUM])
        total[MAXIMUM] = max(total[MAXIMUM], found[MAXIMUM])
        _merge(total, found[COUNT], found[MEAN], found[SECOND], found[THIRD], found[FOURTH])


@compiled
def measure(pool, x, count, blocks, result):
    """Compute the moments of `count` float32 numbers at x, into the first of one row of fields per block.

    The caller initializes the rows: the minimum of no numbers is infinite.
    """
    run_parallel(pool, _measure_part, (x, count, blocks, result))
    _merge_blocks(blocks, result)


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
        _add_row(float32_at(x, r * d), float64_at(squares), float32_at(largest), float32_at(active), d)
