"""Sampling compared with loops that follow the definitions, and frequencies with probabilities."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from normscope.checks import SEED_LIMIT
from normscope.errors import ConfigError, NonFiniteError, NormscopeError
from normscope.generate.config import GenerationConfig
from normscope.generate.sampling import probabilities, sample_index, sample_token, uniform
from tests.support import every_refusal

# Few different values, so that many tokens are equally likely, and some that never come.
logit_lists = st.lists(
    st.sampled_from([-math.inf, -3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 4.0]), min_size=1, max_size=9
).filter(lambda logits: max(logits) > -math.inf)
configs = st.builds(
    GenerationConfig,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.none() | st.integers(1, 10),
    top_p=st.none() | st.sampled_from([0.05, 0.31, 0.57, 0.93]),
    min_p=st.none() | st.sampled_from([0.02, 0.2, 0.7]),
)


def by_definition(logits: list[float], config: GenerationConfig) -> list[float]:
    """The probability of each token: temperature, then top_k, top_p and min_p, one after the other, by the book."""
    left = {i: math.exp(logit / config.temperature) for i, logit in enumerate(logits)}
    ranked = sorted(left, key=lambda i: (-left[i], i))
    if config.top_k is not None:
        ranked = ranked[: config.top_k]
    if config.top_p is not None:
        total, kept, reached = sum(left[i] for i in ranked), [], 0.0
        for i in ranked:
            kept.append(i)
            reached += left[i] / total
            if reached >= config.top_p:
                break
        ranked = kept
    if config.min_p is not None:
        ranked = [i for i in ranked if left[i] >= config.min_p * left[ranked[0]]]
    total = sum(left[i] for i in ranked)
    return [left[i] / total if i in ranked else 0.0 for i in range(len(logits))]


@settings(max_examples=4 * settings().max_examples)
@given(logits=logit_lists, config=configs)
@example(logits=[0.0, 0.0, 0.0], config=GenerationConfig(top_k=2))  # of equals the first are kept
@example(logits=[0.0, 1.0, 1.0, 0.0], config=GenerationConfig(top_k=3))
def test_filters_match_their_definitions(logits: list[float], config: GenerationConfig) -> None:
    found = probabilities(np.array(logits), config)
    np.testing.assert_allclose(found, by_definition(logits, config), rtol=1e-12, atol=0)


def test_greedy_probabilities_and_the_repetition_penalty() -> None:
    logits, seen = np.array([1.0, 3.0, 2.0]), np.array([1])
    config = GenerationConfig(temperature=0, repetition_penalty=2.0)
    assert probabilities(logits, config).tolist() == [0.0, 1.0, 0.0]
    assert probabilities(logits, config, seen).tolist() == [0.0, 0.0, 1.0]


@settings(max_examples=200, derandomize=True)
@given(
    weights=st.lists(st.sampled_from([0.0, 1e-300, 0.125, 0.3, 1.0]), min_size=1, max_size=8).filter(
        lambda w: sum(w) > 0
    ),
    u=st.floats(0, 1, exclude_max=True) | st.just(1 - 2.0**-53),
)
def test_sample_index_inverts_the_cumulative_sum(weights: list[float], u: float) -> None:
    token = sample_index(np.array(weights), u)
    assert weights[token] > 0
    before, upto = np.cumsum([0.0, *weights])[[token, token + 1]]
    assert before <= u * sum(weights) < upto or math.isclose(upto, u * sum(weights))


@pytest.mark.parametrize(
    "config",
    [
        GenerationConfig(),
        GenerationConfig(temperature=2.0, top_k=7, top_p=0.9, min_p=0.1),
        *(
            pytest.param(config, marks=pytest.mark.exhaustive)
            for config in (
                GenerationConfig(temperature=0.5),
                GenerationConfig(temperature=1.7, top_k=5),
                GenerationConfig(top_p=0.8),
                GenerationConfig(min_p=0.3),
            )
        ),
    ],
    ids=repr,
)
def test_frequencies_match_the_probabilities(config: GenerationConfig) -> None:
    """Chi-square: below the value that chance alone passes one time in a thousand (Wilson and Hilferty's formula)."""
    logits, count = np.linspace(-1.5, 1.0, 9)[[4, 0, 7, 2, 8, 1, 6, 3, 5]], 5000
    wanted = probabilities(logits, config) * count
    found = np.bincount([sample_token(logits, config, uniform(5, 0, i)) for i in range(count)], minlength=9)
    possible = wanted > 0
    assert not found[~possible].any()
    freedom = int(possible.sum()) - 1
    bound = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert ((found - wanted)[possible] ** 2 / wanted[possible]).sum() < bound


@given(logits=logit_lists, u=st.floats(0, 1, exclude_max=True))
def test_temperature_zero_takes_the_first_of_the_most_likely(logits: list[float], u: float) -> None:
    for config in (GenerationConfig(temperature=0), GenerationConfig(temperature=0.0, top_k=3, top_p=0.5, min_p=0.9)):
        assert sample_token(np.array(logits), config, u) == logits.index(max(logits))


@pytest.mark.parametrize("temperature", [1e-3, 1e-300, 5e-324])
def test_a_tiny_temperature_does_not_overflow(temperature: float) -> None:
    logits = np.array([-1e30, 3.0, 5.0, 1e-9, -math.inf])
    assert sample_token(logits, GenerationConfig(temperature=temperature, top_p=0.9), 0.5) == 2


@given(logits=logit_lists, seen=st.sets(st.integers(0, 8)), penalty=st.sampled_from([0.5, 1.0, 1.3, 2.0]))
def test_the_repetition_penalty_matches_its_definition(logits: list[float], seen: set[int], penalty: float) -> None:
    seen = {i for i in seen if i < len(logits)}
    changed = [
        logit if i not in seen else logit / penalty if logit > 0 else logit * penalty for i, logit in enumerate(logits)
    ]
    given_logits = np.array(logits)
    for u in (0.1, 0.5, 0.9):
        found = sample_token(
            given_logits, GenerationConfig(repetition_penalty=penalty), u, np.array(sorted(seen), dtype=int)
        )
        assert found == sample_token(np.array(changed), GenerationConfig(), u)
    assert given_logits.tolist() == logits  # the caller's numbers are the caller's


def test_the_repetition_penalty_applies_to_greedy_decoding() -> None:
    logits, greedy = np.array([1.0, 1.5]), GenerationConfig(temperature=0, repetition_penalty=2.0)
    assert sample_token(logits, greedy, 0.0, np.array([1])) == 0
    assert sample_token(logits, greedy, 0.0) == 1


def make(**settings: Any) -> Any:
    return lambda: GenerationConfig(**settings)


def of(*logits: float, **settings: Any) -> Any:
    return lambda: sample_token(np.array(logits), GenerationConfig(**settings), 0.5, np.array([0]))


@every_refusal(
    ("cold", ConfigError, r"temperature=-0\.1 must be a finite number, 0 or above\nfix:", make(temperature=-0.1)),
    ("hot", ConfigError, "temperature=inf must be", make(temperature=math.inf)),
    ("no-number", ConfigError, "temperature=nan must be", make(temperature=math.nan)),
    ("truth", ConfigError, "temperature=True must be", make(temperature=True)),
    ("text", ConfigError, "temperature='1' must be", make(temperature="1")),
    ("k-zero", ConfigError, "top_k=0 must be", make(top_k=0)),
    ("k-half", ConfigError, r"top_k=2\.5 must be", make(top_k=2.5)),
    ("p-zero", ConfigError, "top_p=0 must be above 0 and at most 1", make(top_p=0)),
    ("p-much", ConfigError, r"top_p=95 must be.*\nfix: .*top_p=0\.95", make(top_p=95)),
    ("min-p", ConfigError, r"min_p=1\.01 must be.*\nfix: .*min_p=0\.05", make(min_p=1.01)),
    ("penalty", ConfigError, "repetition_penalty=0 must be", make(repetition_penalty=0)),
    ("nan", NonFiniteError, "logits contain NaN or Inf.*\nfix:", of(0.0, math.nan)),
    ("inf", NonFiniteError, "logits contain NaN or Inf", of(math.inf, 0.0)),
    ("nothing", NonFiniteError, "logits contain NaN or Inf", of(-math.inf, -math.inf)),
    ("penalised-away", NonFiniteError, "logits contain NaN or Inf", of(1e10, 0.0, repetition_penalty=1e-305)),
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()


whole = st.integers(0, SEED_LIMIT - 1)


@given(seed=whole, sample=whole, position=whole)
def test_uniform_is_in_range_and_deterministic(seed: int, sample: int, position: int) -> None:
    u = uniform(seed, sample, position)
    assert 0 <= u < 1
    assert u == uniform(seed, sample, position)


def test_uniform_is_numpys_philox() -> None:
    """The first number of numpy's own stream from this key and counter."""
    key, counter = np.array([3, 5], dtype=np.uint64), np.array([7, 0, 0, 0], dtype=np.uint64)
    assert uniform(3, 5, 7) == np.random.Generator(np.random.Philox(key=key, counter=counter)).random()


def test_uniform_gives_distinct_numbers() -> None:
    found = {uniform(*which) for which in itertools.product(range(12), range(12), range(12))}
    assert len(found) == 12**3


@pytest.mark.parametrize("axis", ["seed", "sample", "position"])
def test_uniform_is_even_along_each_axis(axis: str) -> None:
    """Chi-square over 20 bins: below 43.8 but for one time in a thousand."""
    arguments = {"seed": 1, "sample": 2, "position": 3}
    found = [uniform(**{**arguments, axis: i}) for i in range(4000)]
    counts, _ = np.histogram(found, bins=20, range=(0, 1))
    assert ((counts - 200) ** 2 / 200).sum() < 43.8
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.06
