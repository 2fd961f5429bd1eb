"""What happens in a run, as values: the loop tells, and whoever watches decides what to do with it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Protocol

REASONS = {"done": "done", "stopped": "stopped, and everything is saved", "paused": "paused, and everything is saved"}
"""Why a run ended, as displays and reports say it."""


@dataclass(frozen=True)
class Event:
    """Something that happened after so many steps."""

    kind: ClassVar[str]
    step: int


@dataclass(frozen=True)
class Started(Event):
    """A run begins or goes on.

    Args:
        folder: the run's.
        steps: how many there will be.
        parameters: how many numbers the model learns.
        facts: what else is worth showing, in words: device, precision, corpus.
        floor: bits per byte that no model can beat, where that is known.
        vocab_size: how many tokens there are.
        batch_tokens: how many tokens a step learns from.
        when: the date and time, as ISO 8601 has them.
    """

    kind = "started"
    folder: str
    steps: int
    parameters: int
    vocab_size: int
    batch_tokens: int
    bytes_per_token: float
    floor: float | None = None
    facts: dict[str, str] = field(default_factory=dict)
    when: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


@dataclass(frozen=True)
class Stepped(Event):
    """The weights changed.

    Args:
        loss: nats a token, of the batch that was learnt from.
        gradient_norm: before clipping.
        rate: the share of the peak learning rate.
        epoch: how often the text was read so far.
        seconds: the step's time.
        tokens_per_second: the step's speed.
    """

    kind = "step"
    loss: float
    gradient_norm: float
    rate: float
    epoch: float
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class Validated(Event):
    """A full pass over the validation text; `best` if it was never better."""

    kind = "validation"
    loss: float
    bits_per_byte: float
    best: bool
    seconds: float


@dataclass(frozen=True)
class Sampled(Event):
    """The model wrote something."""

    kind = "sample"
    prompt: str
    text: str


@dataclass(frozen=True)
class Signalled(Event):
    """The size of the signal in each layer, on the way forward and of its gradient on the way back."""

    kind = "signal"
    layers: list[dict[str, Any]]


@dataclass(frozen=True)
class Saved(Event):
    """A checkpoint is whole."""

    kind = "checkpoint"
    path: str


@dataclass(frozen=True)
class Noticed(Event):
    """Something that the user should know."""

    kind = "notice"
    text: str


@dataclass(frozen=True)
class ThreadsChanged(Event):
    """The machine is busy with other work, or no longer is: so many of the run's threads are used."""

    kind = "threads"
    threads: int
    most: int
    busy: bool


@dataclass(frozen=True)
class Finished(Event):
    """The run ended, for this reason: done, stopped by the user, paused where that was asked for, or in words."""

    kind = "finished"
    reason: str
    seconds: float


class Observer(Protocol):
    """Watches a run. `close` is called at its end, also after an error."""

    def see(self, event: Event) -> None: ...

    def close(self) -> None: ...
