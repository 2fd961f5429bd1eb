"""Events of a training run, and the observer interface."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Protocol

from normscope.storage.file_format import FileFormat

METRICS_FORMAT = FileFormat(1)
"""Format of the events in metrics.jsonl."""
END_REASONS = {
    "done": "done",
    "stopped": "stopped, everything saved",
    "paused": "paused, everything saved",
}
"""Why a run ended, as displays and reports show it."""


@dataclass(frozen=True)
class RunEvent:
    """Base class of events; `step` is the number of steps done."""

    kind: ClassVar[str]
    step: int


@dataclass(frozen=True)
class StartedEvent(RunEvent):
    """A run starts or resumes.

    Args:
        folder: Run folder.
        steps: Total number of steps.
        parameters: Number of parameters.
        vocab_size: Vocabulary size.
        batch_tokens: Tokens per step.
        bytes_per_token: Mean length of a token in the validation text.
        floor: Entropy of the text in bits per byte, a lower bound for every model; None if unknown.
        info: Device, precision and so on, for display.
        when: Date and time in ISO 8601.
        format: Version of the format of the events that follow.
    """

    kind = "started"
    folder: str
    steps: int
    parameters: int
    vocab_size: int
    batch_tokens: int
    bytes_per_token: float
    floor: float | None = None
    info: dict[str, str] = field(default_factory=dict)
    when: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    format: int = METRICS_FORMAT.version


@dataclass(frozen=True)
class StepEvent(RunEvent):
    """An optimizer step.

    Args:
        loss: Training loss of the batch, in nats per token.
        grad_norm: Global gradient norm before clipping.
        lr_scale: Learning rate as a fraction of its peak.
        epoch: Passes over the training text so far.
        seconds: Step time.
        tokens_per_second: Throughput of the step.
    """

    kind = "step"
    loss: float
    grad_norm: float
    lr_scale: float
    epoch: float
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class ValidationEvent(RunEvent):
    """A full pass over the validation split; `best` if its loss is the lowest so far."""

    kind = "validation"
    loss: float
    bits_per_byte: float
    best: bool
    seconds: float


@dataclass(frozen=True)
class SampleEvent(RunEvent):
    """A generated sample."""

    kind = "sample"
    prompt: str
    text: str


@dataclass(frozen=True)
class SignalEvent(RunEvent):
    """Activation RMS and gradient RMS of each layer."""

    kind = "signal"
    layers: list[dict[str, Any]]


@dataclass(frozen=True)
class CheckpointEvent(RunEvent):
    """A checkpoint was saved."""

    kind = "checkpoint"
    path: str


@dataclass(frozen=True)
class NoticeEvent(RunEvent):
    """A message for the user."""

    kind = "notice"
    text: str


@dataclass(frozen=True)
class ThreadsEvent(RunEvent):
    """The machine became busy or idle, and the number of threads changed.

    Args:
        threads: Threads in use.
        max_threads: Threads used on an idle machine.
        busy: Whether other processes use the machine.
    """

    kind = "threads"
    threads: int
    max_threads: int
    busy: bool


@dataclass(frozen=True)
class FinishedEvent(RunEvent):
    """The run ended: done, stopped by the user, paused at a requested step, or another reason."""

    kind = "finished"
    reason: str
    seconds: float


class Observer(Protocol):
    """Receives the events of a run. `close` is called at the end, also after an error."""

    def on_event(self, event: RunEvent) -> None: ...

    def close(self) -> None: ...
