"""A run as it is written in its folder: the config, and what happened."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.display.series import Point
from normscope.errors import FileError
from normscope.json_files import read_json
from normscope.train.observers.metrics_file import read_metrics


@dataclass(frozen=True)
class Record:
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


def read_record(folder: str | Path) -> Record:
    """Read a run's folder; only config.json and metrics.jsonl are needed."""
    path = Path(folder) / "config.json"
    if not path.exists():
        raise FileError(f"{folder} is not a run: it has no config.json\nfix: name a folder that `train` made")
    config = read_json(path, dict[str, Any], fix="name a folder that `train` made")
    return Record(Path(folder), config, tuple(read_metrics(Path(folder) / "metrics.jsonl")))


def number(value: Any) -> float:
    """The value as a float; nan for what is none.

    >>> number(2), number(None), number("two"), number(True)
    (2.0, nan, nan, nan)
    """
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
