"""A comparison of two models as text."""

from collections.abc import Iterator

from normscope.comparing.behavior import BehaviorDiff
from normscope.comparing.comparison import ModelDiff, RuntimeDiff
from normscope.comparing.tokenizers import TokenizerDiff
from normscope.comparing.weights import TensorDiff, WeightsDiff

_LONGEST = 6
"""Number of tensors or classes that are listed."""


def diff_text(diff: ModelDiff) -> str:
    """What `normscope diff` prints: a verdict, then a section for each part that was compared."""
    a, b = diff.names
    lines = [f"{a} and {b} {'differ' if diff.differs else 'are equal'}"]
    if diff.structure is not None:
        lines += ["", f"structure: {_count(len(diff.structure), 'setting differs', 'settings differ')}"]
        lines += [f"  {one}" for one in diff.structure]
    if diff.weights is not None:
        lines += ["", *_weights(diff.weights)]
    lines += runtime_lines(diff.runtime)
    lines += [f"note: {notice}" for notice in diff.notices]
    return "\n".join(lines)


def runtime_lines(diff: RuntimeDiff) -> list[str]:
    """Tokenizers and behavior, as an exporter's proof prints them too."""
    lines: list[str] = []
    if diff.tokenizers is not None:
        lines += ["", *_tokenizers(diff.tokenizers)]
    if diff.behavior is not None:
        lines += ["", *_behavior(diff.behavior)]
    if diff.searched:
        lines += [f"  cause: {diff.cause or 'none of the known mistakes makes the logits equal'}"]
    return lines


def _weights(diff: WeightsDiff) -> Iterator[str]:
    equal = diff.count - len(diff.tensors)
    rounded = f", {diff.rounded} of them after rounding to the coarser dtype" if diff.rounded else ""
    yield f"weights: {equal} of {_count(diff.count, 'tensor', 'tensors')} are equal{rounded}"
    yield from _listed([f"only in the first: {name}" for name in diff.missing])
    yield from _listed([f"only in the second: {name}" for name in diff.extra])
    yield from _listed([f"{name} has shape {one} and {other}" for name, one, other in diff.shapes])
    by_size = sorted(diff.tensors, key=lambda one: (not one.hint, -one.relative))
    yield from _listed([_tensor(one) for one in by_size])


def _tensor(diff: TensorDiff) -> str:
    size = f"differs by up to {diff.largest:.2g}, {diff.relative:.1%} of the largest value"
    return f"{diff.name}: {diff.hint or size}"


def _tokenizers(diff: TokenizerDiff) -> Iterator[str]:
    total = sum(one.strings for one in diff.classes)
    if not diff.differs:
        yield f"tokenizers: equal on {total:,} random strings of {len(diff.classes)} classes, ids and text"
        return
    yield f"tokenizers: {_count(len(diff.differing), 'class differs', 'classes differ')} of {len(diff.classes)}"
    for one in diff.differing:
        counts = ((one.ids, "by ids"), (one.texts, "by decoded text"), (one.refused, "encoded by one side only"))
        shown = ", ".join(f"{count} of {one.strings} {what}" for count, what in counts if count)
        yield f"  {one.name}: {shown}; for example {one.example}"


def _behavior(diff: BehaviorDiff) -> Iterator[str]:
    positions = len(diff.distances)
    size = f"largest difference {diff.largest:.2g}, {diff.distance:.2g} standard deviations"
    limit = f"tolerance {diff.tolerance:g}"
    if diff.first_position is None:
        yield f"logits: equal at {positions} positions ({size}; {limit})"
    else:
        yield f"logits: differ from position {diff.first_position} of {positions} on ({size}; {limit})"
        yield f"  the same most likely token at {diff.same_top:.0%} of the positions"
    verdict = "equal" if diff.greedy_equal == diff.greedy else f"differ after {diff.greedy_equal}"
    yield f"greedy tokens: {diff.greedy}, {verdict}"
    if diff.layer is not None:
        after = f" (after {diff.layer.before}, which agrees)" if diff.layer.before else ""
        yield f"  first layer that differs: {diff.layer.name}{after}, by {diff.layer.distance:.2g} standard deviations"


def _listed(lines: list[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines[:_LONGEST])
    if len(lines) > _LONGEST:
        yield f"  ... and {len(lines) - _LONGEST} more"


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
