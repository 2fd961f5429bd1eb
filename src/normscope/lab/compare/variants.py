"""Every combination of what is to be compared, as settings of `train_text`."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from normscope.blocks.norm.spec import as_norm
from normscope.errors import ConfigError
from normscope.lab.claim import Settings
from normscope.lab.trials.text import SMALL_GPT, build_gpt
from normscope.lab.trials.text_sources import ByteCorpus
from normscope.models.gpt import GPT

MOST = 24
"""Combinations: with more, each would get too little of the time, and the intervals of so many pairs say little."""
SOME_TEXT = ByteCorpus(np.zeros(0, np.uint8), np.zeros(0, np.uint8), vocab_size=64)
"""Stands for the text of a comparison before it is read: all that a model needs of it is how many bytes it uses."""


def combinations(choices: Mapping[str, Sequence[Any]], base: Mapping[str, Any], text: Any) -> dict[str, Settings]:
    """Settings of every combination, named by what differs.

    Args:
        choices: for each setting of the model the values to compare; one value is the same for all.
        base: settings of `train_text` that replace the usual ones.
        text: as settings name it.

    >>> found = combinations({"norm": ["rms", "layer"], "wiring": ["pre", "post"], "depth": [2]}, {}, "stories")
    >>> list(found), found["rms pre"]["model"]["depth"]
    (['rms pre', 'rms post', 'layer pre', 'layer post'], 2)
    """
    differing = [name for name, values in choices.items() if len(values) > 1]
    if not differing:
        raise ConfigError("there is nothing to compare\nfix: two values of a setting, for instance --norm rms,layer")
    count = math.prod(len(values) for values in choices.values())
    if count > MOST:  # before they are made: a few long lists have billions
        raise ConfigError(f"{count} combinations are too many to compare\nfix: at most {MOST}")
    found: dict[str, Settings] = {}
    for values in itertools.product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        name = " ".join(_called(setting, chosen[setting]) for setting in differing)
        if name in found:
            raise ConfigError(f"{name!r} is there twice\nfix: name every value once")
        # As many heads for keys as for queries: fewer of them would be another kind of attention.
        heads = chosen.get("heads", SMALL_GPT["model"]["heads"])
        model = {**SMALL_GPT["model"], "kv_heads": heads, **chosen}
        found[name] = {**SMALL_GPT, **base, "text": text, "model": _model(model)}
    return found


def _called(setting: str, value: Any) -> str:
    """A value by its own name, if it says what it is.

    >>> _called("norm", "rms"), _called("depth", 6), _called("norm", "none")
    ('rms', 'depth 6', 'norm none')
    """
    return str(value) if isinstance(value, str) and value != "none" else f"{setting} {value}"


def _model(settings: dict[str, Any]) -> dict[str, Any]:
    """The model's own settings; a norm that shares statistics between tokens is let to, as that is what is asked."""
    norm = as_norm(settings.get("norm", "rms"))
    if norm is not None and norm.brackets(1, 3):
        settings["allow_future_leak"] = True
    return settings


def leaks_future(settings: Settings) -> bool:
    """Whether in training its norm tells tokens of those after them."""
    norm = as_norm(settings["model"].get("norm", "rms"))
    return norm is not None and norm.mixes_along(1, 3)


def check_buildable(variants: Mapping[str, Settings]) -> None:
    """Build each model once, without memory for it, so that what cannot be is told before anything runs."""
    for name, settings in variants.items():
        try:
            build_on_meta(settings)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from error


def build_on_meta(settings: Settings) -> GPT:
    """The model of a variant, without memory for it."""
    with torch.device("meta"):
        return build_gpt({**settings, "init_scale": 1.0}, SOME_TEXT, seed=0)
