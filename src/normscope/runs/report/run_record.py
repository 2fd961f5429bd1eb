"""A run as it is written in its folder: the config, and what happened."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.errors import CheckpointError
from normscope.render.curves import Point
from normscope.runs.checkpoints import Checkpoints
from normscope.runs.metrics import check_metrics, read_metrics
from normscope.runs.run import read_config_file
from normscope.storage.json_files import parse_json
from normscope.storage.safe_folder import SafeFolder


@dataclass(frozen=True)
class RunRecord:
    """What a run left behind.

    Args:
        folder: where.
        config: config.json, as it is.
        events: metrics.jsonl, in order.
    """

    folder: Path
    config: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...]

    def kind(self, kind: str) -> list[Mapping[str, Any]]:
        """The events of a kind, in order."""
        return [event for event in self.events if event["kind"] == kind]

    def curve(self, kind: str, field: str) -> list[Point]:
        """A field of the events of a kind, over the steps; nan where there is no number."""
        return [(event["step"], number(event.get(field))) for event in self.kind(kind)]

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.folder.resolve().name)

    @property
    def start(self) -> Mapping[str, Any]:
        """The first start; a run that went on has more than one."""
        return next(iter(self.kind("started")), {})

    @property
    def end(self) -> Mapping[str, Any]:
        """The end, unless the run went on after it, or has none yet."""
        last = self.events[-1] if self.events else {"kind": ""}
        return last if last["kind"] == "finished" else {}

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The validation with the lowest loss."""
        known = [event for event in self.kind("validation") if math.isfinite(number(event.get("loss")))]
        return min(known, key=lambda event: number(event["loss"]), default=None)

    @property
    def floor(self) -> float | None:
        """Bits per byte that no model can beat, where that is known."""
        floor = number(self.start.get("floor"))
        return floor if math.isfinite(floor) else None

    @property
    def floor_nats(self) -> float | None:
        """The floor as a loss, in nats a token."""
        nats = math.nan if self.floor is None else self.floor * math.log(2) * number(self.start.get("bytes_per_token"))
        return nats if math.isfinite(nats) else None

    @property
    def seconds(self) -> float:
        """The time of the run, all in all, as it was told at its end; before that, of its steps and validations."""
        told = number(self.end.get("seconds"))
        if math.isfinite(told):
            return told
        spent = [number(event.get("seconds")) for event in (*self.kind("step"), *self.kind("validation"))]
        return sum(value for value in spent if math.isfinite(value))


def read_run_record(folder: str | Path) -> RunRecord:
    """Read a run's folder: config.json and metrics.jsonl, as they were written."""
    folder = Path(folder)
    data = read_config_file(folder)
    config = parse_json(data, dict[str, Any], name=str(folder / "config.json"), fix="name a folder that `train` made")
    events = tuple(read_metrics(folder / "metrics.jsonl"))
    _check_prefix(folder, hashlib.sha256(data).hexdigest())
    return RunRecord(folder, config, events)


def _check_prefix(folder: Path, config: str) -> None:
    """Refuse a metrics.jsonl that lacks what the last checkpoint knows to have been in it."""
    checkpoints = Checkpoints(SafeFolder(folder) / "checkpoints", config)
    while (last := checkpoints.last()) is not None:
        try:
            state = checkpoints.state(last)
            check_metrics(folder / "metrics.jsonl", state.metrics_bytes, state.metrics_sha256)
            return
        except CheckpointError:
            if checkpoints.last() == last:  # or else a training process dropped it just now
                raise


def number(value: Any) -> float:
    """The value as a float; nan for what is none.

    >>> number(2), number(None), number("two"), number(True)
    (2.0, nan, nan, nan)
    """
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
