"""Sample a token from the logits of the next position: repetition penalty, temperature, top-k, top-p and min-p.

All computation is in float64 and in a fixed order: by token id wherever probabilities are summed or tie. The same
logits and the same random number give the same token on every machine.
"""

import numpy as np
from numpy.typing import NDArray

from normscope.errors import NonFiniteError
from normscope.generate.config import GenerationConfig

FloatArray = NDArray[np.float64]


def uniform(seed: int, sample: int, position: int) -> float:
    """Return a uniform random number in [0, 1) with 53 random bits: a pure function of (seed, sample, position).

    Philox maps (seed, sample, position) to the bits. There is no state, so the numbers of one sequence never depend on
    which other sequences are generated with it.

    >>> uniform(0, sample=0, position=5) == uniform(0, sample=0, position=5)
    True
    >>> uniform(0, sample=0, position=5) == uniform(0, sample=1, position=5)
    False

    Paper:
        Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
    """
    key = np.array([seed, sample], dtype=np.uint64)
    counter = np.array([position, 0, 0, 0], dtype=np.uint64)
    bits = int(np.random.Philox(counter=counter, key=key).random_raw())
    return (bits >> 11) * 2.0**-53


def sample_token(logits: FloatArray, config: GenerationConfig, u: float, seen: NDArray[np.intp] | None = None) -> int:
    """Sample a token id.

    Args:
        logits: (vocabulary).
        config: the sampling settings.
        u: a uniform random number in [0, 1).
        seen: distinct tokens that already occur, for the repetition penalty.

    >>> logits = np.log([0.1, 0.2, 0.3, 0.4])
    >>> [sample_token(logits, GenerationConfig(), u) for u in (0.0, 0.25, 0.55, 0.99)]
    [0, 1, 2, 3]
    >>> [sample_token(logits, GenerationConfig(top_k=2), u) for u in (0.0, 0.25, 0.55, 0.99)]
    [2, 2, 3, 3]
    """
    logits = _check_finite(_apply_repetition_penalty(logits, seen, config.repetition_penalty))
    if config.temperature == 0:
        return int(np.argmax(logits))
    return sample_index(unnormalized_probabilities(logits, config), u)


def probabilities(logits: FloatArray, config: GenerationConfig, seen: NDArray[np.intp] | None = None) -> FloatArray:
    """Return the probabilities that `sample_token` samples from, with the same arguments; they sum to 1.

    >>> probabilities(np.log([0.1, 0.2, 0.3, 0.4]), GenerationConfig(top_k=2)).round(3).tolist()
    [0.0, 0.0, 0.429, 0.571]
    """
    logits = _check_finite(_apply_repetition_penalty(logits, seen, config.repetition_penalty))
    if config.temperature == 0:
        greedy: FloatArray = np.zeros_like(logits)
        greedy[np.argmax(logits)] = 1.0
        return greedy
    weights = unnormalized_probabilities(logits, config)
    total: FloatArray = weights / weights.sum()
    return total


def unnormalized_probabilities(logits: FloatArray, config: GenerationConfig) -> FloatArray:
    """Return the probabilities after temperature, top_k, top_p and min_p, up to a constant factor.

    The most likely token has weight 1. Sampling needs no normalization.
    """
    # A large difference divided by a small temperature overflows float64, and is a probability of zero.
    with np.errstate(over="ignore"):
        weights: FloatArray = np.exp((logits - logits.max()) / config.temperature)
    if config.top_k is not None and config.top_k < len(weights):
        threshold = np.partition(weights, -config.top_k)[-config.top_k]  # so that few have to be sorted
        ranked = _sort_by_probability(weights, np.flatnonzero(weights >= threshold))
        weights = _keep_only(weights, ranked[: config.top_k])
    if config.top_p is not None:
        weights = _keep_only(weights, _nucleus(weights, config.top_p))
    if config.min_p is not None:
        weights = np.where(weights >= config.min_p, weights, 0.0)
    return weights


def _nucleus(weights: FloatArray, top_p: float) -> NDArray[np.intp]:
    """The smallest set of most likely tokens with at least this share of the total probability.

    A few hundred tokens usually suffice, so only as many as needed are sorted.
    """
    needed = top_p * np.cumsum(weights)[-1]
    candidates = 256
    while True:
        threshold = np.partition(weights, -candidates)[-candidates] if candidates < len(weights) else 0.0
        ranked = _sort_by_probability(weights, np.flatnonzero(weights >= threshold if threshold > 0 else weights > 0))
        cumulative = np.cumsum(weights[ranked])
        if cumulative[-1] >= needed or candidates >= len(weights):
            return ranked[: int(np.searchsorted(cumulative, needed)) + 1]
        candidates *= 8


def sample_index(weights: FloatArray, u: float) -> int:
    """Return the first index at which the cumulative weight exceeds the fraction u, in [0, 1), of the total."""
    cumulative = np.cumsum(weights)  # sequential, so that the summation order is the same everywhere
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


def _check_finite(logits: FloatArray) -> FloatArray:
    """Refuse NaN and +inf; -inf is allowed: a token with probability zero."""
    if not np.isfinite(logits.max()):  # NaN if any logit is
        raise NonFiniteError(
            "the logits contain NaN or Inf, so no token can be sampled\n"
            "fix: use a checkpoint from before the training diverged"
        )
    return logits


def _apply_repetition_penalty(logits: FloatArray, seen: NDArray[np.intp] | None, penalty: float) -> FloatArray:
    if penalty == 1 or seen is None:
        return logits
    penalized, old = logits.copy(), logits[seen]
    with np.errstate(over="ignore"):  # an overflow is refused by _check_finite
        penalized[seen] = np.where(old > 0, old / penalty, old * penalty)
    return penalized


def _sort_by_probability(weights: FloatArray, tokens: NDArray[np.intp]) -> NDArray[np.intp]:
    """Sort tokens from most to least likely; ties by token id."""
    ranked: NDArray[np.intp] = tokens[np.argsort(-weights[tokens], kind="stable")]
    return ranked


def _keep_only(weights: FloatArray, kept: NDArray[np.intp]) -> FloatArray:
    filtered = np.zeros_like(weights)
    filtered[kept] = weights[kept]
    return filtered
