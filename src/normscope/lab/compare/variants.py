"""All combinations of the options to compare, as settings of `train_text`."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from normscope.blocks.norm.named_norms import as_norm
from normscope.errors import ConfigError
from normscope.lab.claim import Settings
from normscope.lab.trials.text import SMALL_GPT, build_on_meta

MAX_VARIANTS = 24
"""With more, each would get too little time, and the intervals of so many pairs would be too wide."""


def combinations(choices: Mapping[str, Sequence[Any]], base: Mapping[str, Any], text: Any) -> dict[str, Settings]:
    """Return the settings of every combination, named by what differs.

    Args:
        choices: values to compare, by model option; a single value is used for all.
        base: overrides of the default settings of `train_text`.
        text: the text, as in settings.

    >>> found = combinations({"norm": ["rms", "layer"], "wiring": ["pre", "post"], "depth": [2]}, {}, "stories")
    >>> list(found), found["rms pre"]["model"]["depth"]
    (['rms pre', 'rms post', 'layer pre', 'layer post'], 2)
    """
    differing = [name for name, values in choices.items() if len(values) > 1]
    if not differing:
        raise ConfigError("nothing to compare\nfix: give an option two values, such as --norm rms,layer")
    count = math.prod(len(values) for values in choices.values())
    if count > MAX_VARIANTS:  # before they are made: a few long lists have billions
        raise ConfigError(f"{count} combinations are too many\nfix: compare at most {MAX_VARIANTS}")
    found: dict[str, Settings] = {}
    for values in itertools.product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        name = " ".join(_label(setting, chosen[setting]) for setting in differing)
        if name in found:
            raise ConfigError(f"{name!r} is listed twice\nfix: list every value once")
        # As many key/value heads as query heads: fewer would be another kind of attention.
        heads = chosen.get("heads", SMALL_GPT["model"]["heads"])
        model = {**SMALL_GPT["model"], "kv_heads": heads, **chosen}
        found[name] = {**SMALL_GPT, **base, "text": text, "model": _model(model)}
    return found


def _label(setting: str, value: Any) -> str:
    """Name a value, with its option if it is not self-explanatory.

    >>> _label("norm", "rms"), _label("depth", 6), _label("norm", "none")
    ('rms', 'depth 6', 'norm none')
    """
    return str(value) if isinstance(value, str) and value != "none" else f"{setting} {value}"


def _model(settings: dict[str, Any]) -> dict[str, Any]:
    """Allow a norm that shares statistics between tokens, because the user asked for it."""
    norm = as_norm(settings.get("norm", "rms"))
    if norm is not None and norm.brackets(1, 3):
        settings["allow_future_leak"] = True
    return settings


def leaks_future(settings: Settings) -> bool:
    """Whether the norm leaks later tokens into earlier ones in training."""
    norm = as_norm(settings["model"].get("norm", "rms"))
    return norm is not None and norm.mixes_along(1, 3)


def check_buildable(variants: Mapping[str, Settings]) -> None:
    """Build each model on the meta device, so that invalid options fail before anything runs."""
    for name, settings in variants.items():
        try:
            build_on_meta(settings)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from error
