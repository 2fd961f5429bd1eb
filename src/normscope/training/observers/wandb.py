"""Log a run to Weights & Biases."""

import secrets
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, Literal, get_args

from normscope.errors import ConfigError
from normscope.runs.events import Observer, RunEvent, SampleEvent
from normscope.storage.files import write_atomically
from normscope.training.observers.tracker_metrics import import_tracker, tracked_metrics

WandbMode = Literal["offline", "online"]


class WeightsAndBiases(Observer):
    """Observer that logs steps, validations and samples to wandb.

    A resumed run keeps its id, stored in `wandb-id.txt`. The x axis is the run's step, since wandb's own step counter
    cannot go back.

    Args:
        folder: Folder of wandb's files and the id; created if necessary.
        mode: "offline" writes to the folder only (`wandb sync` uploads it later); "online" uploads at once.
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
