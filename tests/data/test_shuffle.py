"""The computed shuffle is a permutation, looks random, and is the same everywhere."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.data.shuffle import hash_key, permute, splitmix64

seeded = settings(derandomize=True, deadline=None)


def order(size: int, key: int) -> list[int]:
    found: list[int] = permute(np.arange(size), size, np.full(size, key, dtype=np.uint64)).tolist()
    return found


@seeded
@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_it_is_a_permutation(size: int, key: int) -> None:
    assert sorted(order(size, key)) == list(range(size))


@seeded
@given(size=st.integers(1, 2**60), place=st.integers(0, 2**60), key=st.integers(0, 2**64 - 1))
def test_billions_of_indices_need_no_table(size: int, place: int, key: int) -> None:
    got = permute(np.array([place % size]), size, np.array([key], dtype=np.uint64))
    assert 0 <= got[0] < size


@seeded
@given(places=st.lists(st.integers(0, 999), min_size=1, max_size=20), data=st.data())
def test_each_index_has_its_own_key(places: list[int], data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(places), max_size=len(places)))
    together = permute(np.array(places), 1000, np.array(keys, dtype=np.uint64))
    alone = [order(1000, key)[place] for place, key in zip(places, keys, strict=True)]
    assert together.tolist() == alone


def test_shuffle_looks_random() -> None:
    size, tries = 12, 3000
    orders = np.array([order(size, hash_key(i)) for i in range(tries)])
    for index in range(size):  # every item is equally often at every index
        counts = np.bincount(orders[:, index], minlength=size)
        chi_square = ((counts - tries / size) ** 2 / (tries / size)).sum()
        assert chi_square < 40, "11 degrees of freedom: one in 30,000"
    adjacent = (np.diff(orders, axis=1) == 1).mean()
    assert abs(adjacent - 1 / size) < 0.015


def test_shuffle_never_changes() -> None:
    assert hash_key("batches", 0) == 2244205681928044770
    assert splitmix64(np.array([0, 1], dtype=np.uint64)).tolist() == [16294208416658607535, 10451216379200822465]
    assert order(10, 1) == order(10, 1) == [0, 2, 4, 9, 1, 3, 6, 7, 5, 8]
    assert order(10, 2) != order(10, 1)
