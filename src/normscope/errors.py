"""Exceptions. Messages state the actual value, the expected value and the fix.

Every user error is a `NormscopeError`. Most are also a `ValueError`, so code written for torch.nn keeps working.
"""

import unicodedata
from functools import partial


class NormscopeError(Exception):
    """Base class of all errors of this package."""


class ScopeError(NormscopeError, ValueError):
    """A scope expression that cannot be parsed, or that does not fit a tensor.

    The message shows the expression with carets under the error:

    >>> print(ScopeError("duplicate axis 'c'", text="n [c] c", span=(6, 7), fix="name every axis once"))
    duplicate axis 'c'
        n [c] c
              ^
    fix: name every axis once
    """

    def __init__(self, problem: str, *, text: str, span: tuple[int, int], fix: str, given: str | None = None) -> None:
        lines = [problem, *(f"    {line}" for line in _underlined(text, *span))]
        if given is not None:
            lines.append(f"given: {given}")
        lines.append(f"fix: {fix}")
        super().__init__("\n".join(lines))
        self.problem, self.text, self.span, self.fix, self.given = problem, text, span, fix, given

    def __reduce__(self) -> tuple[object, ...]:
        # Errors are pickled between processes (data loaders, torchrun), and pickle cannot pass keyword-only arguments.
        return partial(type(self), text=self.text, span=self.span, fix=self.fix, given=self.given), (self.problem,)


class ShapeError(NormscopeError, ValueError):
    """A tensor whose shape does not fit the layer."""


class ArgumentTypeError(NormscopeError, TypeError):
    """An argument of the wrong Python type, such as a list instead of a tensor."""


class DtypeError(ArgumentTypeError):
    """A tensor of the wrong dtype or layout."""


class DeviceError(NormscopeError, RuntimeError):
    """Tensors of one operation on different devices."""


class ConfigError(NormscopeError, ValueError):
    """Invalid or incompatible settings."""


class FutureLeakError(ConfigError):
    """A norm in a causal model that would share statistics with future tokens."""


class TransformError(NormscopeError, RuntimeError):
    """A torch tool (an exporter, a tracer, torch.func) that a layer does not support."""


class TokenError(NormscopeError, IndexError):
    """A token id or a text outside the vocabulary."""


class CacheError(NormscopeError, ValueError):
    """A KV cache that is full, or that belongs to another model or batch."""


class WeightsError(NormscopeError, ValueError):
    """Pretrained weights that do not fit the model."""


class CheckpointError(NormscopeError, ValueError):
    """A checkpoint that is incomplete, corrupted, or of another run."""


class NonFiniteError(NormscopeError, ArithmeticError):
    """A loss or gradient that is NaN or infinite."""


class RankError(NormscopeError, RuntimeError):
    """Another process of a distributed run failed.

    Attributes:
        is_echo: Whether that process shows the error itself, so that this one needs to say nothing.
    """

    def __init__(self, message: str, *, is_echo: bool = False) -> None:
        super().__init__(message)
        self.is_echo = is_echo


class FileError(NormscopeError, OSError):
    """A file that cannot be read or written."""


class CorpusError(NormscopeError, ValueError):
    """A corpus that is empty, or too small for the requested training."""


def _underlined(text: str, start: int, end: int, widest: int = 72) -> list[str]:
    """Return the text and a line of carets under it; nothing for a blank text."""
    if not text.strip():
        return []
    end = max(end, start + 1)
    first, last = 0, len(text)
    if len(text) > widest:  # show the part around the start of the error
        first = max(0, min(start - widest // 3, len(text) - widest))
        last = first + widest
    shown = "".join(_one_cell(character) for character in text[first:last])
    carets = "".join(
        ("^" if start <= first + i < end else " ") * _width(character) for i, character in enumerate(shown)
    )
    before, after = "… " * (first > 0), " …" * (last < len(text))
    return [f"{before}{shown.rstrip()}{after}", f"{' ' * len(before)}{carets}".rstrip()]


def _one_cell(character: str) -> str:
    """Replace characters that would misalign the carets: tabs, line breaks, combining accents."""
    if character.isspace():
        return " "
    drawable = character.isprintable() and not unicodedata.combining(character)
    return character if drawable else "\N{REPLACEMENT CHARACTER}"


def _width(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
