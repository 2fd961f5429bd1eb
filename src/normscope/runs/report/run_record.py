"""The config and events of a run, read from its folder."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.render.curves import Point
from normscope.runs.checkpoints import Checkpoints
from normscope.runs.config import read_config_file
from normscope.runs.metrics_file import read_metrics
from normscope.storage.json_files import JsonSource
from normscope.storage.safe_folder import SafeFolder


@dataclass(frozen=True)
class RunRecord:
    """The config and events of a run.

    Args:
        folder: Run folder.
        config: Contents of config.json.
        events: Contents of metrics.jsonl, in order.
    """

    folder: Path
    config: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...]

    def kind(self, kind: str) -> list[Mapping[str, Any]]:
        """Events of a kind, in order."""
        return [event for event in self.events if event["kind"] == kind]

    def curve(self, kind: str, field: str) -> list[Point]:
        """A field of all events of a kind by step; nan where it is missing."""
        return [(event["step"], number(event.get(field))) for event in self.kind(kind)]

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.folder.resolve().name)

    @property
    def start(self) -> Mapping[str, Any]:
        """The first start event; a resumed run has several."""
        return next(iter(self.kind("started")), {})

    @property
    def steps(self) -> Any:
        """The number of steps to train, which resuming can increase; None if unknown."""
        return next((event["steps"] for event in reversed(self.kind("started")) if "steps" in event), None)

    @property
    def end(self) -> Mapping[str, Any]:
        """The finished event, if it is the last event."""
        last = self.events[-1] if self.events else {"kind": ""}
        return last if last["kind"] == "finished" else {}

    @property
    def best(self) -> Mapping[str, Any] | None:
        """Validation event with the lowest loss."""
        known = [event for event in self.kind("validation") if math.isfinite(number(event.get("loss")))]
        return min(known, key=lambda event: number(event["loss"]), default=None)

    @property
    def floor(self) -> float | None:
        """Entropy of the text in bits per byte; None if unknown."""
        floor = number(self.start.get("floor"))
        return floor if math.isfinite(floor) else None

    @property
    def floor_nats(self) -> float | None:
        """The floor as a loss, in nats per token."""
        nats = math.nan if self.floor is None else self.floor * math.log(2) * number(self.start.get("bytes_per_token"))
        return nats if math.isfinite(nats) else None

    @property
    def seconds(self) -> float:
        """Total time of a finished run; otherwise the time of its steps and validations so far."""
        total = number(self.end.get("seconds"))
        if math.isfinite(total):
            return total
        spent = [number(event.get("seconds")) for event in (*self.kind("step"), *self.kind("validation"))]
        return sum(value for value in spent if math.isfinite(value))


def read_run_record(folder: str | Path) -> RunRecord:
    """Read config.json and metrics.jsonl of a run."""
    folder = Path(folder)
    data = read_config_file(folder)
    source = JsonSource(folder / "config.json", "pass a folder written by `normscope train`")
    config = source.parse(data, dict[str, Any])
    events = tuple(read_metrics(folder / "metrics.jsonl"))
    checkpoints = Checkpoints(SafeFolder(folder) / "checkpoints", hashlib.sha256(data).hexdigest())
    checkpoints.check_metrics(folder / "metrics.jsonl")
    return RunRecord(folder, config, events)


def number(value: Any) -> float:
    """The value as a float; nan if it is not a number.

    >>> number(2), number(None), number("two"), number(True)
    (2.0, nan, nan, nan)
    """
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
