"""Views that exchange axes, which only a transpose can do."""


def mixes_axes(before: tuple[int, ...], after: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    """Whether a view exchanges axes, which only a transpose can do.

    >>> mixes_axes((8, 10, 32), (8, 4, 10, 8), (8, 10)), mixes_axes((8, 10, 32), (8, 10, 4, 8), (8, 10))
    (True, False)
    >>> mixes_axes((8, 8, 32), (8, 32, 8), (8, 8)), mixes_axes((8, 8, 32), (8, 8, 4, 8), (8, 8))
    (True, False)
    >>> mixes_axes((8, 10, 32), (8, 32, 10), (8, 10)), mixes_axes((10, 8, 32), (8, 4, 10, 8), (8, 10))
    (True, True)
    """
    before, after = tuple(n for n in before if n > 1), tuple(n for n in after if n > 1)
    samples = batch[0] if batch else 0
    if _merges_or_splits(before, after):
        return False
    if len(before) == 3 and len(after) == 4 and after[0] == before[1] == samples != before[0]:
        return after[2] == before[0] and after[1] * after[3] == before[2]  # (t, b, h * e) -> (b, h, t, e)
    if len(before) == 4 and len(after) == 3 and after[1] == before[0] == samples != after[0]:
        return after[0] in before[1:] and before[1] != before[0]  # (n, c, h, w) -> (w, n, c * h)
    if len(before) == 3 and len(after) == 2 and after[0] == before[1] == samples != before[0]:
        return after[1] == before[0] * before[2]  # the last states of both directions, (2, b, h) -> (b, 2 * h)
    same = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    before, after = before[same:], after[same:]
    if len(before) > 1 and sorted(before) == sorted(after):
        return len(set(before)) == len(before)
    if len(before) == 2 and len(after) == 3:
        heads = after[1] == before[0] != after[0] and after[0] * after[2] == before[1]  # (t, h * e) -> (h, t, e)
        return heads or (after[0] == before[1] != before[0] and after[1] * after[2] == before[0])  # to an image
    if len(before) == 3 and len(after) == 2:
        heads = after == (before[1], before[0] * before[2]) and before[0] != before[1]  # (h, t, e) -> (t, h * e)
        return heads or (after == (before[1] * before[2], before[0]) and after[0] != after[1])  # from an image
    return False


def _merges_or_splits(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether neighboring axes are merged, or axes split, and no more.

    >>> _merges_or_splits((8, 10, 32), (80, 4, 8)), _merges_or_splits((8, 10, 32), (8, 4, 80))
    (True, False)
    """
    i = j = 0
    while i < len(before) and j < len(after):
        left, right, start, other = before[i], after[j], i, j
        while left != right:
            if left < right:
                i += 1
                left *= before[i]
            else:
                j += 1
                right *= after[j]
        if i > start and j > other:
            return False
        i, j = i + 1, j + 1
    return True
