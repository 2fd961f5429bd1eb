"""The comparison of two models: all that could be compared of them, and whether they are equal."""

from collections.abc import Sequence
from dataclasses import dataclass

from normscope.comparing.behavior import BehaviorDiff, compare_behavior, random_tokens
from normscope.comparing.causes import Cause, find_cause
from normscope.comparing.runtime import GPTRuntime, Runtime
from normscope.comparing.structure import SettingDiff
from normscope.comparing.tokenizers import TokenizerDiff, compare_tokenizers
from normscope.comparing.weights import WeightsDiff


@dataclass(frozen=True)
class RuntimeDiff:
    """How two runtimes differ: tokenizers and behavior.

    Args:
        tokenizers: None if a side has no tokenizer.
        behavior: None if nothing can be compared, because the vocabularies or contexts have nothing in common.
        cause: what makes the logits equal; None if they agree, or if no known mistake does.
        searched: whether a cause was searched for.
    """

    tokenizers: TokenizerDiff | None
    behavior: BehaviorDiff | None
    cause: Cause | None = None
    searched: bool = False

    @property
    def differs(self) -> bool:
        return any(part is not None and part.differs for part in (self.tokenizers, self.behavior))


@dataclass(frozen=True)
class ModelDiff:
    """How two models differ; `str()` is what `normscope diff` prints.

    Args:
        names: what the two sides are called.
        structure: settings that differ; None if a side has no config in our terms.
        weights: None if the weights of a side cannot be read.
        runtime: tokenizers and behavior.
        notices: notes, such as what could not be compared.
    """

    names: tuple[str, str]
    structure: tuple[SettingDiff, ...] | None
    weights: WeightsDiff | None
    runtime: RuntimeDiff
    notices: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        return bool(self.structure) or (self.weights is not None and self.weights.differs) or self.runtime.differs

    def __str__(self) -> str:
        from normscope.comparing.report import diff_text

        return diff_text(self)


def compare_runtimes(
    a: Runtime,
    b: Runtime,
    *,
    special: Sequence[str] = (),
    tokens: Sequence[int] | None = None,
    tolerance: float | None = None,
    causes: bool = True,
) -> RuntimeDiff:
    """Compare the tokenizers of two runtimes on random Unicode, then their logits and greedy tokens.

    If the logits differ and a side is a GPT of ours, known mistakes are applied to it to find the cause.

    Args:
        a: the reference.
        b: the other side, in any tool.
        special: names of special tokens, for the tokenizers.
        tokens: tokens to compare the logits on; None for random ones.
        tolerance: see `compare_behavior`.
        causes: whether to search for the cause.
    """
    tokenizers = None
    if a.has_tokenizer and b.has_tokenizer:
        tokenizers = compare_tokenizers(a, b, vocab_size=_text_vocabulary(a), special=special)
    tokens = random_tokens(a, b) if tokens is None else tokens
    behavior = compare_behavior(a, b, tokens=tokens, tolerance=tolerance)
    if not causes or behavior.first_position is None or not isinstance(a, GPTRuntime):
        return RuntimeDiff(tokenizers, behavior)
    return RuntimeDiff(tokenizers, behavior, find_cause(a, b, tokens, behavior.tolerance), searched=True)


def _text_vocabulary(runtime: Runtime) -> int:
    """Number of tokens with a text: a model's vocabulary may be padded."""
    if isinstance(runtime, GPTRuntime) and runtime.tokenizer is not None:
        return runtime.tokenizer.vocab_size
    return runtime.vocab_size
