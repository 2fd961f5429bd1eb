"""From the logits of the next token to a token.

Everything is in float64 and in a fixed order: that of the ids wherever tokens are summed or are equally likely. So the
same logits and the same number of chance give the same token, on any machine.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.checks import check_positive_int, check_positive_number, is_number
from normscope.errors import ConfigError, NonFiniteError

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How the next token is chosen. The steps are taken in this order; what is left is drawn by its probability.

    Args:
        repetition_penalty: logits of tokens that are in the text already are divided by this where they are positive,
            and multiplied where they are negative; 1 changes nothing. (Keskar et al. 2019, "CTRL")
        temperature: logits are divided by this: below 1 likely tokens become likelier. At 0 the likeliest token is
            taken, the first of those that are equally likely, and the steps below do nothing.
        top_k: only so many of the likeliest tokens are left. (Fan et al. 2018, "Hierarchical Neural Story Generation")
        top_p: only the fewest of the likeliest tokens that together have this probability at least; there is always
            one. (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration")
        min_p: only tokens of at least this share of the likeliest one's probability. (Nguyen et al. 2024, "Turning Up
            the Heat: Min-p Sampling")

    >>> SamplingConfig(temperature=0.8, top_k=50).top_p is None
    True
    >>> SamplingConfig(top_p=1.5)
    Traceback (most recent call last):
    normscope.errors.ConfigError: top_p=1.5 must be above 0 and at most 1
    fix: top_p=0.95, for instance; leave it out for no limit
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not (is_number(self.temperature) and 0 <= self.temperature < float("inf")):
            raise ConfigError(
                f"temperature={self.temperature!r} must be a finite number, 0 or above\n"
                f"fix: 1.0 for the model's own probabilities, 0 for the likeliest token"
            )
        if self.top_k is not None:
            check_positive_int(top_k=self.top_k)
        for name, example in (("top_p", 0.95), ("min_p", 0.05)):
            share = getattr(self, name)
            if share is not None and not (is_number(share) and 0 < share <= 1):
                raise ConfigError(
                    f"{name}={share!r} must be above 0 and at most 1\n"
                    f"fix: {name}={example}, for instance; leave it out for no limit"
                )
        check_positive_number(repetition_penalty=self.repetition_penalty)


def choose(logits: Numbers, config: SamplingConfig, chance: float, seen: NDArray[np.intp] | None = None) -> int:
    """The token that these logits, (vocabulary), and a number of chance from 0 up to 1 come to.

    `seen` are the tokens that are in the text already, each once; only a repetition penalty asks for them.

    >>> logits = np.log([0.1, 0.2, 0.3, 0.4])
    >>> [choose(logits, SamplingConfig(), chance) for chance in (0.0, 0.25, 0.55, 0.99)]
    [0, 1, 2, 3]
    >>> [choose(logits, SamplingConfig(top_k=2), chance) for chance in (0.0, 0.25, 0.55, 0.99)]
    [2, 2, 3, 3]
    """
    logits = _checked(_penalise(logits, seen, config.repetition_penalty))
    if config.temperature == 0:
        return int(np.argmax(logits))
    return draw(_likelihoods(logits, config), chance)


def probabilities(logits: Numbers, config: SamplingConfig) -> Numbers:
    """The probability of each token after temperature, top_k, top_p and min_p."""
    likelihood = _likelihoods(logits, config)
    result: Numbers = likelihood / np.cumsum(likelihood)[-1]
    return result


def _likelihoods(logits: Numbers, config: SamplingConfig) -> Numbers:
    """What the probabilities are in proportion to: to draw one, their sum is enough."""
    # A large difference over a small temperature leaves float64, and is a probability of zero.
    with np.errstate(over="ignore"):
        likelihood: Numbers = np.exp((logits - logits.max()) / config.temperature)  # of the likeliest: 1
    if config.top_k is not None and config.top_k < len(likelihood):
        least = np.partition(likelihood, -config.top_k)[-config.top_k]  # so that few have to be sorted
        ranked = _ranked(likelihood, np.flatnonzero(likelihood >= least))
        likelihood = _only(likelihood, ranked[: config.top_k])
    if config.top_p is not None:
        likelihood = _only(likelihood, _nucleus(likelihood, config.top_p))
    if config.min_p is not None:
        likelihood = np.where(likelihood >= config.min_p, likelihood, 0.0)
    return likelihood


def _nucleus(likelihood: Numbers, share: float) -> NDArray[np.intp]:
    """The fewest of the likeliest tokens that together have this share of the sum.

    Most often a few hundred are enough, so not more are sorted than it takes.
    """
    needed = share * np.cumsum(likelihood)[-1]
    most = 256
    while True:
        least = np.partition(likelihood, -most)[-most] if most < len(likelihood) else 0.0
        ranked = _ranked(likelihood, np.flatnonzero(likelihood >= least if least > 0 else likelihood > 0))
        reached = np.cumsum(likelihood[ranked])
        if reached[-1] >= needed or most >= len(likelihood):
            return ranked[: int(np.searchsorted(reached, needed)) + 1]
        most *= 8


def draw(probability: Numbers, chance: float) -> int:
    """The first token, by id, at which the sum of the probabilities is more than chance (from 0 up to 1) of it all."""
    reached = np.cumsum(probability)  # one after the other, so that the order of summation is everywhere the same
    return int(np.searchsorted(reached, chance * reached[-1], side="right"))


def _checked(logits: Numbers) -> Numbers:
    """Refuse numbers that are none; minus infinity is one: a token that never comes."""
    if not np.isfinite(logits.max()):  # which is NaN if any of them is
        raise NonFiniteError(
            "the model's logits are infinite or not numbers, so no token can be chosen\n"
            "fix: use weights from before the training diverged"
        )
    return logits


def _penalise(logits: Numbers, seen: NDArray[np.intp] | None, penalty: float) -> Numbers:
    if penalty == 1 or seen is None:
        return logits
    changed, of_seen = logits.copy(), logits[seen]
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        changed[seen] = np.where(of_seen > 0, of_seen / penalty, of_seen * penalty)
    return changed


def _ranked(likelihood: Numbers, tokens: NDArray[np.intp]) -> NDArray[np.intp]:
    """These tokens from the likeliest on; of those that are equally likely the smaller id comes first."""
    ranked: NDArray[np.intp] = tokens[np.argsort(-likelihood[tokens], kind="stable")]
    return ranked


def _only(likelihood: Numbers, kept: NDArray[np.intp]) -> Numbers:
    only = np.zeros_like(likelihood)
    only[kept] = likelihood[kept]
    return only
