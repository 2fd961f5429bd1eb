"""Log a run to TensorBoard or Weights & Biases, with the same metrics under the same names."""

import dataclasses
import importlib
import secrets
import textwrap
from collections.abc import Mapping
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from normscope.errors import ConfigError
from normscope.runs.events import Observer, RunEvent, SampleEvent, StartedEvent, StepEvent, ValidationEvent
from normscope.storage.files import write_atomically
from normscope.training.config import LEARNING_RATES
from normscope.training.validation import ValidationResult

WandbMode = Literal["offline", "online"]
TRACKED: Mapping[type[RunEvent], tuple[str, tuple[str, ...]]] = {
    StepEvent: ("training", ("loss", "grad_norm", *LEARNING_RATES, "lr_scale", "epoch", "tokens_per_second")),
    ValidationEvent: ("validation", tuple(field.name for field in dataclasses.fields(ValidationResult))),
}
"""Prefix and fields of the events that trackers log."""


def tracked_metrics(event: RunEvent) -> dict[str, float]:
    """Metrics of a step or validation by name; empty for other events.

    >>> tracked_metrics(ValidationEvent(step=5, loss=1.5, bits_per_byte=1.2, best=True, seconds=0.1))
    {'validation/loss': 1.5, 'validation/bits_per_byte': 1.2}
    """
    prefix, names = TRACKED.get(type(event), ("", ()))
    return {f"{prefix}/{name}": getattr(event, name) for name in names}


def import_tracker(module: str, package: str) -> ModuleType:
    """Import a tracker; raises with install instructions if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{package} is not installed ({error})\nfix: pip install 'normscope[track]', or omit the option"
        ) from error


class TensorBoard(Observer):
    """Observer that logs steps, validations and samples to TensorBoard.

    After a resume or rollback, later steps written before are purged.

    Args:
        folder: Log directory; created if necessary.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._writers = import_tracker("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None
        self._step = 0

    def on_event(self, event: RunEvent) -> None:
        if isinstance(event, StartedEvent) or event.step < self._step or self._writer is None:
            self._open(event.step)
        self._step = event.step
        for name, value in tracked_metrics(event).items():
            self._writer.add_scalar(name, value, event.step)
        if isinstance(event, SampleEvent):
            # Indented by four spaces, it is a Markdown code block.
            self._writer.add_text("sample", textwrap.indent(event.prompt + event.text, "    "), event.step)

    def _open(self, step: int) -> None:
        self.close()
        # The step itself is not repeated. Validation and samples after it are, with the same results.
        self._writer = self._writers.SummaryWriter(str(self._folder), purge_step=step + 1)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WeightsAndBiases(Observer):
    """Observer that logs steps, validations and samples to wandb.

    A resumed run keeps its id, stored in `wandb-id.txt`. The x axis is the run's step, since wandb's own step counter
    cannot go back.

    Args:
        folder: Folder of wandb's files and the id; created if necessary.
        mode: "offline" writes to the folder only (`wandb sync` uploads it later); "online" uploads immediately.
        project, name: wandb project and run name.
        config: The run's config.
    """

    def __init__(
        self,
        folder: str | Path,
        mode: WandbMode = "offline",
        project: str = "normscope",
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if mode not in get_args(WandbMode):
            raise ConfigError(f"mode={mode!r}: choose one of {', '.join(get_args(WandbMode))}")
        self._wandb = import_tracker("wandb", "wandb")
        Path(folder).mkdir(parents=True, exist_ok=True)
        try:
            self._run = self._wandb.init(
                dir=str(folder),
                mode=mode,
                project=project,
                name=name,
                config=dict(config or {}),
                id=_run_id(Path(folder) / "wandb-id.txt"),
                resume="allow" if mode == "online" else None,  # not available offline
                # The display owns the console, and a run folder contains no code.
                settings=self._wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True),
            )
        except self._wandb.errors.Error as error:
            raise ConfigError(f"wandb cannot start: {error}\nfix: wandb login, or mode='offline'") from error
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def on_event(self, event: RunEvent) -> None:
        values: dict[str, Any] = dict(tracked_metrics(event))
        if isinstance(event, SampleEvent):
            values["sample"] = self._wandb.Html(f"<pre>{escape(event.prompt + event.text)}</pre>", inject=False)
        if values:
            self._run.log({"step": event.step, **values})

    def close(self) -> None:
        self._run.finish()


def _run_id(path: Path) -> str:
    """Read the run's id, or create one."""
    if not path.is_file():
        write_atomically(path, secrets.token_hex(4))
    return path.read_text(encoding="utf-8").strip()
