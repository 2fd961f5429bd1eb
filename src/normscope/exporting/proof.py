"""Prove that an exported model is right: load it in the target's own runtime, and compare it with ours."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from normscope.comparing.behavior import centered, logit_distances, random_tokens, tolerance_for
from normscope.comparing.comparison import RuntimeDiff, compare_runtimes
from normscope.comparing.runtime import CachingRuntime, GPTRuntime, Runtime
from normscope.comparing.runtimes import RuntimeRefusalError
from normscope.comparing.tokenizers import StringClass
from normscope.data.tokenizers import Tokenizer
from normscope.exporting.first_difference import first_difference
from normscope.exporting.library_tokenizer import eos_of
from normscope.exporting.model_source import ModelSource
from normscope.models.gpt import GPT
from normscope.render.formatting import format_count

_PROMPT = 8
"""How many tokens come at once before the others are decoded one by one."""
_LISTED = 6
"""How many classes of strings are listed."""

Write = Callable[[ModelSource, str, Path], None]
"""Writes (source, weights, path)."""
KnownDifference = Callable[[StringClass, Tokenizer], str | None]
"""Why a format may tokenize a class of strings differently; None if it may not."""


@dataclass(frozen=True)
class ProofPlan:
    """How to prove the exports of a format.

    Args:
        runtime: name of the target's runtime.
        open: (source, weights, path) -> the exported model in its runtime. Raises RuntimeMissingError.
        reference: (model, weights) -> the model with the weights that were written, such as rounded ones.
        tolerance: (reference, weights) -> largest difference of a logit in standard deviations; None: the usual one.
        known: why some strings may be tokenized differently.
        exact: a weight format that is proved first, because its tolerance is smaller; None if there is none.
        rounds: whether the reference differs from the model because its weights are rounded.
    """

    runtime: str
    open: Callable[[ModelSource, str, Path], Runtime]
    reference: Callable[[GPT, str], GPT] = lambda model, weights: model
    tolerance: Callable[[GPT, str], float | None] = lambda model, weights: None
    known: KnownDifference = lambda one, tokenizer: None
    exact: str | None = None
    rounds: bool = True


@dataclass(frozen=True)
class Proof:
    """What a proof found.

    Args:
        runtime: the program that ran the exported model.
        diff: the comparison; None if it could not run the model.
        problems: what differs, in words; empty if the proof succeeded.
        known_differences: classes of strings that differ as the format says they may, and why.
        rounding: largest change of a logit that the weight format makes, in standard deviations.
        first_layer: the first layer that differs; None if none does, or if it cannot be found.
    """

    runtime: str
    diff: RuntimeDiff | None = None
    problems: tuple[str, ...] = ()
    known_differences: tuple[str, ...] = ()
    rounding: float = 0.0
    first_layer: str | None = None

    @property
    def succeeded(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{'proved equal' if self.succeeded else 'differs'} in {self.runtime}{self._compared()}"]
        lines += [f"  {problem}" for problem in self.problems]
        if self.first_layer is not None:
            lines.append(f"  first layer that differs: {self.first_layer}")
        if self.diff is not None and self.diff.cause is not None:
            lines.append(f"  cause: {self.diff.cause}")
        lines += [f"  known difference: {one}" for one in self.known_differences]
        if self.rounding > 0:
            lines.append(f"  the weight format changes logits by up to {self.rounding:.2g} standard deviations")
        return "\n".join(lines)

    def _compared(self) -> str:
        if self.diff is None:
            return ""
        parts = []
        if self.diff.tokenizers is not None:
            strings = sum(one.strings for one in self.diff.tokenizers.classes)
            parts.append(f"{format_count(strings)} strings")
        if self.diff.behavior is not None:
            behavior = self.diff.behavior
            parts.append(
                f"logits at {len(behavior.distances)} positions (largest difference {behavior.distance:.1e} standard "
                f"deviations, allowed {behavior.tolerance:.0e}), {behavior.greedy_equal} greedy tokens"
            )
        return f": {', '.join(parts)}"


def prove(source: ModelSource, weights: str, path: Path, plan: ProofPlan, write: Write) -> Proof:
    """Compare an export with its model.

    Args:
        source: what was exported.
        weights: its weight format.
        path: the file or folder that was written.
        plan: how to prove this format.
        write: the writer, for probes: (source, weights, path).
    """
    if plan.exact is not None and plan.exact != weights:
        with tempfile.TemporaryDirectory() as folder:
            other = Path(folder) / path.name
            write(source, plan.exact, other)
            proof = _compare(source, plan.exact, other, plan, write)
        if not proof.succeeded:
            problems = tuple(f"{problem} (with --weights {plan.exact})" for problem in proof.problems)
            return replace(proof, problems=problems)
    return _compare(source, weights, path, plan, write)


def _compare(source: ModelSource, weights: str, path: Path, plan: ProofPlan, write: Write) -> Proof:
    reference = plan.reference(source.model, weights)
    ours = GPTRuntime(reference, source.tokenizer)
    try:
        theirs = plan.open(source, weights, path)
    except RuntimeRefusalError as error:
        return Proof(plan.runtime, problems=(str(error),))
    tolerance = plan.tolerance(reference, weights)
    limit = tolerance_for(theirs.precision) if tolerance is None else tolerance
    with _running(theirs):
        tokens = random_tokens(ours, theirs)
        diff = compare_runtimes(
            ours, theirs, special=tuple(source.tokenizer.special_tokens), tokens=tokens, tolerance=limit
        )
    known, problems = _tokenizer_problems(diff, source.tokenizer, plan.known)
    theirs_eos = getattr(theirs, "eos_token_id", None)
    if theirs_eos != eos_of(source.tokenizer):
        problems.append(f"the end-of-text token is {theirs_eos} instead of {eos_of(source.tokenizer)}")
    first_layer, behavior = None, diff.behavior
    if behavior is not None and behavior.first_position is not None:
        position = behavior.first_position
        problems.append(f"logits differ by {behavior.distances[position]:.1e} at position {position} and later")
        first_layer = behavior.layer.name if behavior.layer else None
        if first_layer is None:
            first_layer = _locate(source, weights, path, plan, write, limit, tokens)
    elif behavior is not None and behavior.greedy_equal < behavior.greedy:
        problems.append(f"greedy token {behavior.greedy_equal} differs, although the logits of a whole text are equal")
    elif isinstance(theirs, CachingRuntime):
        problems += _cache_problems(ours, theirs, tokens, limit)
    rounding = 0.0
    if plan.rounds and reference is not source.model:
        before = centered(GPTRuntime(source.model).logits(tokens))
        rounding = max(logit_distances(before, centered(ours.logits(tokens))))
    return Proof(theirs.name, diff, tuple(problems), tuple(known), rounding, first_layer)


def _cache_problems(ours: GPTRuntime, theirs: CachingRuntime, tokens: Sequence[int], limit: float) -> list[str]:
    """Return what differs in decoding: the likeliest tokens may hide a small difference."""
    prompt = max(1, min(_PROMPT, len(tokens) // 2))
    expected, got = centered(ours.logits(tokens)), centered(theirs.cached_logits(tokens, prompt))
    for position, distance in enumerate(logit_distances(expected, got)):
        if not distance <= limit:
            return [f"logits with a cache differ by {distance:.1e} at position {position}, but are equal without one"]
    return []


def _tokenizer_problems(diff: RuntimeDiff, tokenizer: Tokenizer, known: KnownDifference) -> tuple[list[str], list[str]]:
    """Return the differences that the format says there may be, and the others."""
    allowed: dict[str, list[str]] = {}
    problems = []
    for one in () if diff.tokenizers is None else diff.tokenizers.differing:
        reason = known(one, tokenizer)
        if reason is None:
            problems.append(f"tokenizer: {one.name} differ, such as {one.example}")
        else:
            allowed.setdefault(reason, []).append(one.name)
    notes = []
    for reason, names in allowed.items():
        which = "most classes of strings" if len(names) > _LISTED else ", ".join(names)
        notes.append(f"{reason} ({which})")
    return notes, problems


def _locate(
    source: ModelSource, weights: str, path: Path, plan: ProofPlan, write: Write, limit: float, tokens: Sequence[int]
) -> str | None:
    def differs(probe: GPT) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            other = Path(folder) / path.name
            silenced = replace(source, model=probe)
            write(silenced, weights, other)
            theirs = plan.open(silenced, weights, other)
            with _running(theirs):
                got = centered(theirs.logits(tokens))
        expected = centered(GPTRuntime(plan.reference(probe, weights)).logits(tokens))
        return not max(logit_distances(expected, got)) <= limit

    return first_difference(source.model, differs)


@contextmanager
def _running(runtime: Runtime) -> Iterator[Runtime]:
    """Close a runtime at the end, if it is a process."""
    try:
        yield runtime
    finally:
        getattr(runtime, "close", lambda: None)()
