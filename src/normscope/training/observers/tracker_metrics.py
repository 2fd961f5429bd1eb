"""What trackers keep of an event: the same numbers under the same names, whichever tracker it is."""

import importlib
from types import ModuleType

from normscope.errors import ConfigError
from normscope.runs.events import Event, Stepped, Validated


def tracked_numbers(event: Event) -> dict[str, float]:
    """The numbers of a step or a validation by name; nothing for other events.

    >>> tracked_numbers(Validated(step=5, loss=1.5, bits_per_byte=1.2, best=True, seconds=0.1))
    {'validation/loss': 1.5, 'validation/bits_per_byte': 1.2}
    """
    match event:
        case Stepped():
            names = ("loss", "gradient_norm", "rate", "epoch", "tokens_per_second")
            return {f"training/{name}": getattr(event, name) for name in names}
        case Validated():
            return {"validation/loss": event.loss, "validation/bits_per_byte": event.bits_per_byte}
    return {}


def import_tracker(module: str, package: str) -> ModuleType:
    """The module of a tracker, or how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{package} is not installed ({error})\nfix: pip install 'normscope[track]', or train without it"
        ) from error
