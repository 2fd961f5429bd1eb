"""What a record stores of the first NaN or Inf that came to a loss or a gradient."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NonFiniteOrigin:
    """The function that made the first non-finite values.

    Args:
        function: its name; "" for tensors that no function made.
        module: the innermost module that called it; "" outside of all.
        line: the line of code, as `train.py:12`; None if unknown.
        kind: `function`; `masked` for one whose inputs were non-finite only where a mask was -inf; `empty` for one
            without elements; `tensor` for a tensor that no function made, such as data; or `weight` for a parameter.
        dtype: of its result.
        overflow: whether its result had infinities, but no NaN.
        smallest, largest: extremes of its arguments.
        smallest_magnitude: of its last argument, such as a denominator.
        in_model: whether a module of the model was running.
    """

    function: str
    module: str
    line: str | None
    kind: str = "function"
    dtype: str = ""
    overflow: bool = False
    smallest: float | None = None
    largest: float | None = None
    smallest_magnitude: float | None = None
    in_model: bool = False


@dataclass(frozen=True)
class NonFiniteStats:
    """The first NaN or Inf, and what happened before.

    Args:
        loss: where that of the first non-finite loss came from; None if all were finite or it is unknown.
        gradient: the function whose derivative made the first non-finite gradient from a finite one; None if unknown.
        steps_before: optimizer steps before the first of both.
        first_loss, last_loss: the first loss, and the last finite one; None if no loss was a finite number.
        largest_update: of the steps before, the largest median over the parameters of update rms over weight rms.
    """

    loss: NonFiniteOrigin | None = None
    gradient: NonFiniteOrigin | None = None
    steps_before: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    largest_update: float | None = None
