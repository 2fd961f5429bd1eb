"""The metrics that trackers log, under the same names for every tracker."""

import importlib
from types import ModuleType

from normscope.errors import ConfigError
from normscope.runs.events import RunEvent, StepEvent, ValidationEvent


def tracked_metrics(event: RunEvent) -> dict[str, float]:
    """Metrics of a step or validation by name; empty for other events.

    >>> tracked_metrics(ValidationEvent(step=5, loss=1.5, bits_per_byte=1.2, best=True, seconds=0.1))
    {'validation/loss': 1.5, 'validation/bits_per_byte': 1.2}
    """
    match event:
        case StepEvent():
            names = ("loss", "grad_norm", "lr_scale", "epoch", "tokens_per_second")
            return {f"training/{name}": getattr(event, name) for name in names}
        case ValidationEvent():
            return {"validation/loss": event.loss, "validation/bits_per_byte": event.bits_per_byte}
    return {}


def import_tracker(module: str, package: str) -> ModuleType:
    """Import a tracker; raises with install instructions if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{package} is not installed ({error})\nfix: pip install 'normscope[track]', or omit the option"
        ) from error
