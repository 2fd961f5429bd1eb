"""Why two models differ: apply known mistakes of conversions to one of them, and see which makes the outputs equal.

Nothing is guessed from names: a cause is reported only if the changed model gives the other side's logits.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from normscope.blocks.mlp import MLP
from normscope.comparing.behavior import centered, logit_distances
from normscope.comparing.mistakes import Changed, Weights, mistakes
from normscope.comparing.runtime import FloatArray, GPTRuntime, Runtime
from normscope.errors import NormscopeError
from normscope.interop.checkpoint import model_from_weights
from normscope.models.gpt import GPTConfig

_BETTER = 4.0
"""A first cause must make the distance this many times smaller to look for a second one."""


@dataclass(frozen=True)
class Cause:
    """What makes the outputs equal.

    Args:
        mistakes: what the second side does, or the first doesn't; usually one.
        distance: largest difference of a logit that is left, in standard deviations of the logits.
        is_full: whether what is left is within the tolerance.
    """

    mistakes: tuple[str, ...]
    distance: float
    is_full: bool

    def __str__(self) -> str:
        text = "; and ".join(self.mistakes)
        return text if self.is_full else f"partly: {text} (what is left: {self.distance:.2g})"


def find_cause(a: GPTRuntime, b: Runtime, tokens: Sequence[int], tolerance: float) -> Cause | None:
    """Find the mistake that explains why `b` differs from `a`: `a` with the mistake gives the logits of `b`.

    Args:
        a: the reference.
        b: the other side, in any tool.
        tokens: tokens on which they differ.
        tolerance: largest distance of equal logits.
    """
    tokens = list(tokens)
    size = min(a.vocab_size, b.vocab_size)
    theirs = centered(b.logits(tokens)[:, :size])
    config = a.model.config
    weights: Weights = a.model.state_dict()

    def distance(config: GPTConfig, weights: Weights) -> float:
        try:
            changed = model_from_weights(config, weights)
            if config.activation == a.model.config.activation:  # which may be computed as another tool does
                for one, own in zip(changed.modules(), a.model.modules(), strict=False):
                    if isinstance(one, MLP) and isinstance(own, MLP):
                        one.activation = own.activation
            logits = GPTRuntime(changed).logits(tokens)[:, :size]
        except NormscopeError:  # settings that do not fit together
            return float("inf")
        return max(logit_distances(centered(logits), theirs))

    start = distance(config, weights)
    shift = _shifted(centered(a.logits(tokens)[:, :size]), theirs, tolerance)
    if shift is not None:
        return shift
    first = min(_measured(mistakes(config, weights), distance), key=lambda one: one[0], default=None)
    if first is None or not first[0] * _BETTER < start:
        return None
    left, (text, config, weights) = first
    if left <= tolerance:
        return Cause((text,), left, True)
    second = min(_measured(mistakes(config, weights), distance), key=lambda one: one[0])
    if second[0] <= tolerance:
        return Cause((text, second[1][0]), second[0], True)
    return Cause((text,), left, False)


def _measured(
    changed: Iterable[Changed], distance: Callable[[GPTConfig, Weights], float]
) -> Iterator[tuple[float, Changed]]:
    for one in changed:
        yield distance(one[1], one[2]), one


def _shifted(ours: FloatArray, theirs: FloatArray, tolerance: float) -> Cause | None:
    """Whether the logits are those of the next or the previous position."""
    for text, one, other in (
        ("its logits are one position late: those at i are of i - 1", ours[:-1], theirs[1:]),
        ("its logits are one position early: those at i are of i + 1", ours[1:], theirs[:-1]),
    ):
        left = max(logit_distances(one, other), default=float("inf"))
        if left <= tolerance:
            return Cause((text,), left, True)
    return None
