"""The checks that everything shares."""

import math
from typing import Any

import numpy as np
import pytest

from normscope.checks import (
    MAX_SIZE,
    SEED_LIMIT,
    check_flags,
    check_non_negative,
    check_positive_int,
    check_positive_number,
    check_seed,
    is_integer,
    is_number,
)
from normscope.errors import ConfigError


@pytest.mark.parametrize("value", [1, 7, np.int64(3)])
def test_whole_numbers(value: Any) -> None:
    assert is_integer(value)
    check_positive_int(size=value)


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None, [1], math.nan], ids=repr)
def test_what_is_no_size(value: Any) -> None:
    assert not is_integer(value)
    with pytest.raises(ConfigError, match=r"size=.* must be a positive integer"):
        check_positive_int(size=value)


def test_the_least_can_be_less() -> None:
    assert is_integer(0, least=0)
    assert is_integer(-3, least=-3)
    assert not is_integer(-4, least=-3)


@pytest.mark.parametrize("value", [0.5, 2, np.float32(0.5)])
def test_numbers_above_zero(value: Any) -> None:
    assert is_number(value)
    check_positive_number(rate=value)


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, True, "1", None], ids=repr)
def test_what_is_not_above_zero(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"rate=.* must be a finite number above zero"):
        check_positive_number(rate=value)


@pytest.mark.parametrize("value", ["no", 0, 1, None], ids=repr)
def test_what_is_neither_true_nor_false(value: Any) -> None:
    check_flags(bias=True, tied=False)
    with pytest.raises(ConfigError, match=r"tied=.* must be True or False"):
        check_flags(bias=True, tied=value)


@pytest.mark.parametrize("seed", [-1, SEED_LIMIT, 1.0, True, None, "7"])
def test_what_is_no_seed_is_refused(seed: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be an integer from 0 to 2\^64 - 1\nfix: seed=0"):
        check_seed(seed=seed)


def test_the_largest_seed_is_one() -> None:
    check_seed(seed=SEED_LIMIT - 1)


def test_what_no_float_or_json_could_hold_is_refused_in_few_words() -> None:
    for check in (check_positive_int, check_non_negative):
        check(size=MAX_SIZE)
        with pytest.raises(ConfigError, match=r"^size=9007199254740993 must be at most 2\^53"):
            check(size=MAX_SIZE + 1)
        with pytest.raises(ConfigError, match=r"^size=a number of 5001 digits must be"):
            check(size=10**5000)
    with pytest.raises(ConfigError, match=r"rate=a number of 401 digits must be a finite number"):
        check_positive_number(rate=10**400)
    with pytest.raises(ConfigError, match=r"^size='x{79}\.\.\. must be"):
        check_positive_int(size="x" * 10**6)  # type: ignore[arg-type]
