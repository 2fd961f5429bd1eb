"""Events of a training run, and the observer interface."""

from datetime import UTC, datetime
from typing import Any, ClassVar, Protocol

import msgspec

from normscope.storage.json_files import FileFormat

METRICS_FORMAT = FileFormat(1)
"""Format of the events in metrics.jsonl."""
END_REASONS = {"done": "done", "stopped": "stopped, everything saved", "paused": "paused, everything saved"}
"""Why a run ended, as displays and reports show it."""


class RunEvent(msgspec.Struct, frozen=True):
    """Base class of events; `step` is the number of steps done.

    Its kind is the name of the class in lower case: a `StepEvent` has the kind "step", in metrics.jsonl and in the
    name of the method `on_step` of an `Observer`.
    """

    kind: ClassVar[str]
    step: int

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.removesuffix("Event").lower()


class StartedEvent(RunEvent, frozen=True):
    """A run starts or resumes.

    Args:
        folder: Run folder.
        steps: Total number of steps.
        parameters: Number of parameters.
        vocab_size: Vocabulary size.
        batch_tokens: Tokens per step.
        bytes_per_token: Mean length of a token in the validation text.
        floor: Entropy of the text in bits per byte, a lower bound for every model; None if unknown.
        conversations: Whether it learns conversations instead of plain text.
        info: Device, precision and so on, for display.
        when: Date and time in ISO 8601.
        format: Version of the format of the events that follow.
    """

    folder: str
    steps: int
    parameters: int
    vocab_size: int
    batch_tokens: int
    bytes_per_token: float
    floor: float | None = None
    conversations: bool = False
    info: dict[str, str] = msgspec.field(default_factory=dict)
    when: str = msgspec.field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    format: int = METRICS_FORMAT.version


class StepEvent(RunEvent, frozen=True):
    """An optimizer step.

    Args:
        loss: Training loss of the batch, in nats per token.
        grad_norm: Global gradient norm before clipping.
        lr_scale: Factor of the learning-rate schedule: the learning rates as a fraction of their peaks.
        epoch: Passes over the training text so far.
        seconds: Step time.
        tokens_per_second: Throughput of the step.
        matrix_lr: Learning rate of the matrices in the blocks.
        lr: Learning rate of all other parameters.
    """

    loss: float
    grad_norm: float
    lr_scale: float
    epoch: float
    seconds: float
    tokens_per_second: float
    matrix_lr: float
    lr: float


class ValidationEvent(RunEvent, frozen=True):
    """The `ValidationResult` of a full pass over the validation split; `best` if its loss is the lowest so far."""

    loss: float
    bits_per_byte: float
    best: bool
    seconds: float


class SampleEvent(RunEvent, frozen=True):
    """A generated sample."""

    prompt: str
    text: str


class SignalEvent(RunEvent, frozen=True):
    """Activation RMS and gradient RMS of each layer."""

    layers: list[dict[str, Any]]


class CheckpointEvent(RunEvent, frozen=True):
    """A checkpoint was saved."""

    path: str


class NoticeEvent(RunEvent, frozen=True):
    """A message for the user."""

    text: str


class ThreadsEvent(RunEvent, frozen=True):
    """The machine became busy or idle, and the number of threads changed.

    Args:
        threads: Threads in use.
        max_threads: Threads used on an idle machine.
        busy: Whether other processes use the machine.
    """

    threads: int
    max_threads: int
    busy: bool


class FinishedEvent(RunEvent, frozen=True):
    """The run ended: done, stopped by the user, paused at a requested step, or another reason."""

    reason: str
    seconds: float


class Observer(Protocol):
    """Receives the events of a run.

    A subclass defines a method for each kind of event it handles: `on_step`, `on_validation`, `on_sample`, ...
    """

    def on_event(self, event: RunEvent) -> None:
        """Call the method for the event, if there is one."""
        handler = getattr(self, f"on_{event.kind}", None)
        if handler is not None:
            handler(event)

    def close(self) -> None:
        """Called at the end of the run, also after an error."""
        return
