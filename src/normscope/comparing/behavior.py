"""Compare what two runtimes compute: logits position by position, then greedy tokens, then the layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normscope.comparing.runtime import FloatArray, Runtime
from normscope.errors import ConfigError

TOLERANCES = {
    "float64": 1e-4,
    "float32": 1e-4,
    "float16": 0.02,
    "bfloat16": 0.1,
    "f16": 0.02,
    "bf16": 0.1,
    "int8": 0.15,
    "q8_0": 0.15,
    "q6_k": 0.3,
    "q4_k": 0.6,
    "q4_0": 0.8,
}
"""Largest difference of a logit, in standard deviations of the logits, by the coarser precision of the two sides."""

LENGTH, GREEDY_TOKENS = 64, 64
"""Length of the compared text, and number of greedy tokens, unless the context is shorter."""


@dataclass(frozen=True)
class LayerDifference:
    """The first layer whose output differs.

    Args:
        name: the layer, by our name.
        distance: largest difference, in standard deviations of the layer's output.
        before: the last layer that agrees; empty if none does.
    """

    name: str
    distance: float
    before: str


@dataclass(frozen=True)
class BehaviorDiff:
    """How the logits and the greedy continuations of two runtimes differ.

    Args:
        tolerance: largest distance of equal logits.
        distances: largest difference of a logit at each position, in standard deviations of the logits.
        largest: largest absolute difference of a logit.
        same_top: share of the positions with the same most likely token.
        greedy: number of greedy tokens that were compared.
        greedy_equal: how many of them are equal before the first that differs; a tie within the tolerance is equal.
        layer: the first layer that differs; None if the logits agree, or if a side does not show its layers.
    """

    tolerance: float
    distances: tuple[float, ...]
    largest: float
    same_top: float
    greedy: int
    greedy_equal: int
    layer: LayerDifference | None = None

    @property
    def distance(self) -> float:
        return max(self.distances)

    @property
    def first_position(self) -> int | None:
        """The first position whose logits differ."""
        return next((i for i, distance in enumerate(self.distances) if not distance <= self.tolerance), None)

    @property
    def differs(self) -> bool:
        return self.first_position is not None or self.greedy_equal < self.greedy


def tolerance_for(*precisions: str) -> float:
    """The tolerance of the coarsest of these precisions.

    >>> tolerance_for("float32", "Q8_0")
    0.15
    """
    unknown = [precision for precision in precisions if precision.lower() not in TOLERANCES]
    if unknown:
        raise ConfigError(f"unknown precision {unknown[0]!r}\nfix: use one of {', '.join(TOLERANCES)}")
    return max(TOLERANCES[precision.lower()] for precision in precisions)


def compare_behavior(
    a: Runtime,
    b: Runtime,
    *,
    tokens: Sequence[int] | None = None,
    tolerance: float | None = None,
    greedy: int = GREEDY_TOKENS,
) -> BehaviorDiff:
    """Compare logits on the same tokens, greedy continuations, and, if they differ, layer by layer.

    Args:
        a: the reference.
        b: the other runtime.
        tokens: tokens to compare on; by default random ones.
        tolerance: largest difference of a logit, in standard deviations of the logits; None for that of the coarser
            precision in `TOLERANCES`.
        greedy: number of greedy tokens.
    """
    limit = tolerance_for(a.precision, b.precision) if tolerance is None else tolerance
    tokens = random_tokens(a, b) if tokens is None else list(tokens)
    ours, theirs = _common_logits(a, b, tokens)
    distances = logit_distances(ours, theirs)
    layer = first_layer(a, b, tokens, limit) if not max(distances) <= limit else None
    prompt = tokens[: max(1, min(8, a.context // 2, b.context // 2))]
    count = max(0, min(greedy, a.context - len(prompt), b.context - len(prompt)))
    return BehaviorDiff(
        tolerance=limit,
        distances=distances,
        largest=float(np.max(np.abs(ours - theirs))),
        same_top=float(np.mean(ours.argmax(1) == theirs.argmax(1))),
        greedy=count,
        greedy_equal=_equal_greedy_tokens(a, b, prompt, count, limit),
        layer=layer,
    )


def random_tokens(a: Runtime, b: Runtime, length: int = LENGTH, seed: int = 0) -> list[int]:
    """Random tokens that both sides know, as many as fit both contexts."""
    length = min(length, a.context, b.context)
    found: list[int] = np.random.default_rng(seed).integers(min(a.vocab_size, b.vocab_size), size=length).tolist()
    return found


def _common_logits(a: Runtime, b: Runtime, tokens: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """The logits of both sides for the tokens that both have: vocabularies may be padded."""
    size = min(a.vocab_size, b.vocab_size)
    return centered(a.logits(tokens)[:, :size]), centered(b.logits(tokens)[:, :size])


def centered(logits: FloatArray) -> FloatArray:
    """Subtract the mean of each position, which no probability depends on: some tools show only log-probabilities."""
    found: FloatArray = logits - logits.mean(axis=1, keepdims=True)
    return found


def logit_distances(ours: FloatArray, theirs: FloatArray) -> tuple[float, ...]:
    """Largest difference at each position, in standard deviations of the logits; infinite for a NaN on one side.

    >>> logits = np.array([[1.0, 3.0], [2.0, 0.0]], dtype=np.float32)
    >>> logit_distances(logits, logits + np.float32([[0], [0.5]]))
    (0.0, 0.5)
    """
    scale = max(_scale(ours), _scale(theirs))
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours.astype(np.float64) - theirs)
    difference[~np.isfinite(difference)] = np.inf
    difference[(ours == theirs) | (np.isnan(ours) & np.isnan(theirs))] = 0.0
    return tuple(float(round(value, 9)) for value in difference.reshape(len(difference), -1).max(axis=1) / scale)


def _scale(values: FloatArray) -> float:
    """Mean standard deviation of a position; 1 if all values are equal."""
    finite = np.where(np.isfinite(values), values, 0.0).astype(np.float64)
    return float(finite.std(axis=1).mean()) or 1.0


def first_layer(a: Runtime, b: Runtime, tokens: Sequence[int], limit: float) -> LayerDifference | None:
    """The first layer whose output differs: the first block, then the first layer inside of it."""
    ours, theirs = a.layers(tokens), b.layers(tokens)
    shared = [name for name in ours if name in theirs and ours[name].shape == theirs[name].shape]
    distances = {name: max(logit_distances(ours[name], theirs[name])) for name in shared}
    outer = [name for name in shared if not _is_inside_block(name)]
    wrong = next((i for i, name in enumerate(outer) if not distances[name] <= limit), None)
    if wrong is None:
        return None
    name, before = outer[wrong], outer[wrong - 1] if wrong else ""
    inside = [inner for inner in shared if inner.startswith(f"{name}.") and not distances[inner] <= limit]
    if inside:
        name = inside[0]
        earlier = shared[: shared.index(name)]
        before = earlier[-1] if earlier else before
    return LayerDifference(name, distances[name], before)


def _is_inside_block(name: str) -> bool:
    return name.startswith("blocks.") and name.count(".") > 1


def _equal_greedy_tokens(a: Runtime, b: Runtime, prompt: Sequence[int], count: int, limit: float) -> int:
    """How many greedy tokens are equal. Where both choices are within the tolerance, either is right."""
    if not count:
        return 0
    ours, theirs = a.greedy(prompt, count), b.greedy(prompt, count)
    same = next((i for i, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), None)
    if same is None:
        return min(count, len(ours), len(theirs))
    logits = a.logits([*prompt, *ours[:same]])[-1:]
    gap = abs(float(logits[0, ours[same]] - logits[0, min(theirs[same], logits.shape[1] - 1)]))
    return count if gap <= 2 * limit * _scale(logits) else same  # after a tie the texts differ rightly
