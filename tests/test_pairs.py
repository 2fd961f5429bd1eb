"""The covers of pairs: complete, and much smaller than the product."""

import itertools

import pytest

from tests.pairs import cover, each_once, every_pair, every_value


@pytest.mark.parametrize("sizes", [(4,), (3, 2), (33, 3, 5, 2), (2, 2, 2, 2, 2), (4, 1, 3)])
def test_any_two_values_meet(sizes: tuple[int, ...]) -> None:
    rows = cover(sizes)
    for a, b in itertools.combinations(range(len(sizes)), 2):
        assert {(row[a], row[b]) for row in rows} == set(itertools.product(range(sizes[a]), range(sizes[b])))
    assert {row[0] for row in rows} == set(range(sizes[0]))
    assert cover(sizes) == rows


def test_a_cover_is_small() -> None:
    assert len(cover((33, 3, 5, 2))) <= 1.2 * 33 * 5
    assert len(cover((2, 2, 2, 2, 2))) < 10


@pytest.mark.parametrize("sizes", [(4,), (3, 2), (33, 3, 5, 2), (4, 1, 4)])
def test_each_value_is_there(sizes: tuple[int, ...]) -> None:
    rows = each_once(sizes)
    assert [set(values) for values in zip(*rows, strict=True)] == [set(range(size)) for size in sizes]
    assert len(rows) == max(sizes)


def test_values_beside_the_chosen_are_marked() -> None:
    _, parameters = every_value(a="xyz", b={"one": 1, "two": 2}).args
    assert [p.id for p in parameters if not p.marks] == ["x-one", "y-two", "z-one"]
    assert len(parameters) == 6


def test_the_rest_is_marked_and_nothing_is_lost() -> None:
    _, parameters = every_pair(a="xyz", b={"one": 1, "two": 2}, c="pq").args
    assert sorted(p.values for p in parameters) == sorted(itertools.product("xyz", (1, 2), "pq"))
    assert {p.id for p in parameters} == {"-".join(row) for row in itertools.product("xyz", ("one", "two"), "pq")}
    assert sum(not p.marks for p in parameters) == len(cover((3, 2, 2)))
