"""The metrics that trackers log, under the same names for every tracker."""

import importlib
from collections.abc import Mapping
from types import ModuleType

from normscope.errors import ConfigError
from normscope.runs.events import RunEvent, StepEvent, ValidationEvent

TRACKED: Mapping[type[RunEvent], tuple[str, tuple[str, ...]]] = {
    StepEvent: ("training", ("loss", "grad_norm", "lr_scale", "epoch", "tokens_per_second")),
    ValidationEvent: ("validation", ("loss", "bits_per_byte")),
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
