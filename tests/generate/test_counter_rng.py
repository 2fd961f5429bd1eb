"""Chance: the same for the same seed, sample and position, even over its range, and unlike any other."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.checks import SEED_LIMIT
from normscope.generate.counter_rng import uniform

whole = st.integers(0, SEED_LIMIT - 1)


@given(seed=whole, sample=whole, position=whole)
def test_it_is_in_range_and_always_the_same(seed: int, sample: int, position: int) -> None:
    u = uniform(seed, sample, position)
    assert 0 <= u < 1
    assert u == uniform(seed, sample, position)


def test_it_is_the_generator_that_the_docstring_names() -> None:
    """The first number of numpy's own stream from this key and counter."""
    key, counter = np.array([3, 5], dtype=np.uint64), np.array([7, 0, 0, 0], dtype=np.uint64)
    assert uniform(3, 5, 7) == np.random.Generator(np.random.Philox(key=key, counter=counter)).random()


def test_no_two_are_alike() -> None:
    found = {uniform(*which) for which in itertools.product(range(12), range(12), range(12))}
    assert len(found) == 12**3


@pytest.mark.parametrize("axis", ["seed", "sample", "position"])
def test_it_is_even_along_each_axis(axis: str) -> None:
    """Chi-square over 20 bins: below 43.8 but for one time in a thousand."""
    arguments = {"seed": 1, "sample": 2, "position": 3}
    found = [uniform(**{**arguments, axis: i}) for i in range(4000)]
    counts, _ = np.histogram(found, bins=20, range=(0, 1))
    assert ((counts - 200) ** 2 / 200).sum() < 43.8
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.06
