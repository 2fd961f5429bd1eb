"""Norms of channels whose numbers lie together: batch, instance, group and layer norms of a contiguous (n, c, h, w).

Memory is a sequence of segments, one for each sample and channel, of `inner` numbers each. A statistic is over a group
of segments: a channel of all samples (batch), one segment (instance), some channels of a sample (group). A group is
taken as a whole: its sums, then its results, while its numbers are still in the cache. Threads share the groups, and
within a group everything is in one order, so the bits do not depend on their number.

For the backward pass the input and each group's mean are kept. Results are plain or careful as in `rows.py`.
"""

import math

import numpy as np

from normscope.ops.fused.accumulation import PIECE, is_plain
from normscope.ops.fused.compiler import byte_at, compiled, float32_at, float64_at, fma, in_vectors, room_for
from normscope.ops.fused.parallel import share
from normscope.ops.fused.vector_loops import fill

_three = room_for(3)


@compiled
def _segment(group, member, channels, together, shared):
    """Which segment is the given member of a group."""
    if shared:  # the same channels of every sample
        return member // together * channels + group * together + member % together
    return group * together + member


@compiled
def _run(real, first, last, masked):
    """Where the numbers that are, like the first one, real or padding come to an end."""
    if not masked:
        return last
    end = first + 1
    while end < last and byte_at(real)[end] == byte_at(real)[first]:
        end += 1
    return end


@compiled
def _is_real(real, place, masked):
    return not masked or byte_at(real)[place] != 0


@compiled
def _add(x, around, count):
    """The sum of x - around, and of its square."""
    in_vectors()
    total, square = 0.0, 0.0
    for j in range(count):
        value = np.float64(x[j]) - around
        total += value
        square += value * value
    return total, square


@compiled
def _scale(x, y, mean, factor, shift, count, plain):
    """y = (x - mean) factor + shift."""
    in_vectors()
    if plain:
        high = np.float32(factor)
        low = np.float32(factor - high) if high - high == 0 else np.float32(0.0)  # an infinite gain has no low part
        off = np.float32(shift - mean * factor)
        for j in range(count):
            y[j] = fma(x[j], high, fma(x[j], low, off))
    else:
        for j in range(count):
            y[j] = (np.float64(x[j]) - mean) * factor + shift


@compiled
def _root(square, eps):
    in_vectors()  # on its own, lest the division move into the loops that use the result
    return 1.0 / math.sqrt(square + eps)


@compiled
def _measure(x, real, group, members, channels, inner, together, shared, centred, masked):
    """How many real numbers a group has, their mean, and the mean square around it (around zero if not centred).

    Sums are taken around the first real number, which lies within sqrt(count) deviations of the mean: the difference
    of squares keeps its digits, of which float64 has nine more than float32.
    """
    count, around, total, square = 0, 0.0, 0.0, 0.0
    for member in range(members):
        segment = _segment(group, member, channels, together, shared)
        mask = real + segment // channels * inner
        j = 0
        while j < inner:
            end = _run(mask, j, inner, masked)
            if _is_real(mask, j, masked):
                at = float32_at(x + 4 * (segment * inner + j))
                if count == 0 and centred:
                    around = np.float64(at[0])
                sums = _add(at, around, end - j)
                total, square, count = total + sums[0], square + sums[1], count + end - j
            j = end
    if count == 0:
        return 0, 0.0, 1.0
    off = total / count if centred else 0.0
    square = square / count - off * off
    return count, around + off, max(square, 0.0) if square == square else square


@compiled
def _forward_part(
    part, parts, x, weight, bias, real, y, means, squares, counts, groups, members, channels, inner, together,
    shared, eps, centred, masked, given,
):  # fmt: skip
    for group in range(groups * part // parts, groups * (part + 1) // parts):
        if not given:
            count, mean, square = _measure(x, real, group, members, channels, inner, together, shared, centred, masked)
            float64_at(counts)[group], float64_at(means)[group], float64_at(squares)[group] = count, mean, square
        mean, square = float64_at(means)[group], float64_at(squares)[group]
        scale = _root(square, eps)
        plain = not given and is_plain(mean, square, members * inner)  # a known mean may be far from these numbers
        for member in range(members):
            segment = _segment(group, member, channels, together, shared)
            channel, mask = segment % channels, real + segment // channels * inner
            factor, shift = scale * float32_at(weight)[channel], np.float64(float32_at(bias)[channel])
            j = 0
            while j < inner:
                end, at = _run(mask, j, inner, masked), 4 * (segment * inner + j)
                if _is_real(mask, j, masked):
                    _scale(float32_at(x + at), float32_at(y + at), mean, factor, shift, end - j, plain)
                else:
                    fill(float32_at(y + at), np.float32(0.0), end - j)
                j = end


@compiled
def forward(
    threads, fork, number, team, x, weight, bias, real, y, means, squares, counts, groups, members, channels, inner,
    together, shared, eps, centred, masked, given,
):  # fmt: skip
    """y, and the mean, mean square and count of each group; with `given`, by means and squares that are there already.

    Arrays are given by their addresses; `real` has a byte for each sample and place.
    """
    share(
        threads, fork, number, team, _forward_part,
        (x, weight, bias, real, y, means, squares, counts, groups, members, channels, inner, together, shared,
         eps, centred, masked, given),
    )  # fmt: skip


@compiled
def _pulls(x, g, mean, sums, count, plain):
    """Add, of c = x - mean: the sums of c c, g c and g."""
    in_vectors()
    if plain:
        near = np.float32(mean)
        for first in range(0, count, PIECE):
            square, pull, push = np.float32(0.0), np.float32(0.0), np.float32(0.0)
            for j in range(first, min(count, first + PIECE)):
                c = x[j] - near
                square += c * c
                pull += g[j] * c
                push += g[j]
            sums[0] += square
            sums[1] += pull
            sums[2] += push
    else:
        all_squares, all_pulls, all_pushes = 0.0, 0.0, 0.0
        for j in range(count):
            off, v = np.float64(x[j]) - mean, np.float64(g[j])
            all_squares += off * off
            all_pulls += v * off
            all_pushes += v
        sums[0] += all_squares
        sums[1] += all_pulls
        sums[2] += all_pushes


@compiled
def _gradient(x, g, dx, mean, factor, pull, push, count, plain):
    """dx = g factor - push - (x - mean) pull."""
    in_vectors()
    if plain:
        high = np.float32(factor)
        low = np.float32(factor - high) if high - high == 0 else np.float32(0.0)  # an infinite gain has no low part
        slope, off = np.float32(-pull), np.float32(mean * pull - push)
        for j in range(count):
            dx[j] = fma(g[j], high, fma(g[j], low, fma(x[j], slope, off)))
    else:
        for j in range(count):
            dx[j] = np.float64(g[j]) * factor - push - (np.float64(x[j]) - mean) * pull


@compiled
def _sum_up(x, weight, real, g, gains, biases, mean, group, members, channels, inner, together, shared, masked, plain):
    """A group's sums for the backward pass; and those of each segment, for the gradients of gain and bias."""
    count, square, pull, push, room = 0, 0.0, 0.0, 0.0, _three()
    sums, off = float64_at(room), mean - np.float32(mean) if plain else 0.0
    for member in range(members):
        segment = _segment(group, member, channels, together, shared)
        mask, j = real + segment // channels * inner, 0
        sums[0], sums[1], sums[2] = 0.0, 0.0, 0.0
        while j < inner:
            end, at = _run(mask, j, inner, masked), 4 * (segment * inner + j)
            if _is_real(mask, j, masked):
                _pulls(float32_at(x + at), float32_at(g + at), mean, sums, end - j, plain)
                count += end - j
            j = end
        # Plain sums are around the mean's nearest float32; what that is off is made up for here.
        square, own_pull, own_push = square + sums[0], sums[1] - off * sums[2], sums[2]
        float64_at(gains)[segment], float64_at(biases)[segment] = own_pull, own_push
        gain = float32_at(weight)[segment % channels]
        pull, push = pull + gain * own_pull, push + gain * own_push
    count = max(count, 1)
    return square / count - off * off, pull / count, push / count


@compiled
def _backward_part(
    part, parts, x, weight, real, g, dx, means, squares, gains, biases, groups, members, channels, inner,
    together, shared, eps, centred, masked, given,
):  # fmt: skip
    """With v = g weight:  dx = scale (v - mean(v) - c scale^2 mean(v c)); the means only of what was measured."""
    for group in range(groups * part // parts, groups * (part + 1) // parts):
        mean, plain, square, pull, push = float64_at(means)[group], not given, 0.0, 0.0, 0.0
        if plain:
            square, pull, push = _sum_up(
                x, weight, real, g, gains, biases, mean, group, members, channels, inner, together, shared, masked, True
            )
        if not plain or not is_plain(mean, square, members * inner):
            plain = False
            square, pull, push = _sum_up(
                x, weight, real, g, gains, biases, mean, group, members, channels, inner, together, shared, masked,
                False,
            )  # fmt: skip
        scale = _root(float64_at(squares)[group] if given else square, eps)
        pull, push = scale * scale * scale * pull, scale * push if centred else 0.0
        for member in range(members):
            segment = _segment(group, member, channels, together, shared)
            factor, mask = scale * float32_at(weight)[segment % channels], real + segment // channels * inner
            float64_at(gains)[segment] *= scale
            j = 0
            while j < inner:
                end, at = _run(mask, j, inner, masked), 4 * (segment * inner + j)
                if _is_real(mask, j, masked) and given:
                    _scale(float32_at(g + at), float32_at(dx + at), 0.0, factor, 0.0, end - j, True)
                elif _is_real(mask, j, masked):
                    _gradient(
                        float32_at(x + at), float32_at(g + at), float32_at(dx + at), mean, factor, pull, push, end - j,
                        plain,
                    )  # fmt: skip
                else:
                    fill(float32_at(dx + at), np.float32(0.0), end - j)
                j = end


@compiled
def _add_samples(sums, result, segments, channels):
    for c in range(channels):
        total = 0.0
        for segment in range(c, segments, channels):
            total += float64_at(sums)[segment]
        float32_at(result)[c] = total


@compiled
def backward(
    threads, fork, number, team, x, weight, real, g, dx, dweight, dbias, means, squares, sums, groups, members,
    channels, inner, together, shared, eps, centred, masked, given,
):  # fmt: skip
    """dx, dweight and dbias. At `sums` there is room for two float64 numbers of each segment."""
    gains, biases = sums, sums + 8 * groups * members
    share(
        threads, fork, number, team, _backward_part,
        (x, weight, real, g, dx, means, squares, gains, biases, groups, members, channels, inner, together,
         shared, eps, centred, masked, given),
    )  # fmt: skip
    _add_samples(gains, dweight, groups * members, channels)
    _add_samples(biases, dbias, groups * members, channels)
