"""The one family of errors: what was got, what was wanted, what to do.

Everything that a user can get wrong raises a `NormscopeError`. Most kinds are also a `ValueError`, so code that
was written against torch.nn and catches that keeps working.
"""

import unicodedata


class NormscopeError(Exception):
    """The root of the family: catch this one to catch them all."""


class ScopeError(NormscopeError, ValueError):
    """A scope expression that cannot be read, or that does not fit the tensor it met.

    The message draws the expression with carets under the characters at fault:

    >>> print(ScopeError("axis 'c' is there twice", text="n [c] c", span=(6, 7), fix="name every axis once"))
    axis 'c' is there twice
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
        self.problem = problem
        self.text = text
        self.span = span
        self.fix = fix
        self.given = given

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (data loaders, torchrun), and pickle cannot call keyword-only arguments.
        return _scope_error, (type(self), self.problem, self.text, self.span, self.fix, self.given)


class ShapeError(NormscopeError, ValueError):
    """A tensor whose shape does not fit the layer."""


class DtypeError(NormscopeError, TypeError):
    """A tensor, or an argument, of the wrong type."""


class DeviceError(NormscopeError, RuntimeError):
    """Tensors that are to be computed with together, on different devices."""


class ConfigError(NormscopeError, ValueError):
    """Settings that do not fit together, found when they are made and not in the middle of a run."""


class FutureLeakError(ConfigError):
    """A norm in a causal model whose statistics would see tokens that are still to come."""


class TransformError(NormscopeError, RuntimeError):
    """A tool of torch's (an exporter, a tracer, torch.func) that a layer does not support, and what to use instead."""


class TokenError(NormscopeError, IndexError):
    """A token id, or a text, that the vocabulary does not have."""


class CacheError(NormscopeError, ValueError):
    """A key/value cache that is full, or that was made for another model or batch."""


class WeightsError(NormscopeError, ValueError):
    """Weights from elsewhere that do not fit the model."""


class CheckpointError(NormscopeError, ValueError):
    """A checkpoint that is not whole, not what it was when it was written, or of another run."""


class NonFiniteError(NormscopeError, ArithmeticError):
    """A loss or a gradient that is infinite or not a number."""


class FileError(NormscopeError, OSError):
    """A file that cannot be read or written, and why."""


class CorpusError(NormscopeError, ValueError):
    """Text that cannot be learnt from: there is none, or too little for what was asked."""


def _scope_error(
    kind: type[ScopeError], problem: str, text: str, span: tuple[int, int], fix: str, given: str | None
) -> ScopeError:
    return kind(problem, text=text, span=span, fix=fix, given=given)


def _underlined(text: str, start: int, end: int, widest: int = 72) -> list[str]:
    """The text and the carets under it: one line each, whatever the text holds; no lines for a blank text."""
    if not text.strip():
        return []
    end = max(end, start + 1)
    first, last = 0, len(text)
    if len(text) > widest:  # show the part around the fault's beginning
        first = max(0, min(start - widest // 3, len(text) - widest))
        last = first + widest
    shown = "".join(_one_cell(character) for character in text[first:last])
    carets = "".join(
        ("^" if start <= first + i < end else " ") * _width(character) for i, character in enumerate(shown)
    )
    before, after = "… " * (first > 0), " …" * (last < len(text))
    return [f"{before}{shown.rstrip()}{after}", f"{' ' * len(before)}{carets}".rstrip()]


def _one_cell(character: str) -> str:
    """The character itself, or a stand-in for one that would move the carets: a tab, a line break, an accent."""
    if character.isspace():
        return " "
    drawable = character.isprintable() and not unicodedata.combining(character)
    return character if drawable else "\N{REPLACEMENT CHARACTER}"


def _width(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
