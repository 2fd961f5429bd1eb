"""Conversion of a GPT config to JSON and back, with every field written out."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from normscope.blocks.norm.norm_spec import NormSpec
from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.checks import check_fields
from normscope.errors import ConfigError
from normscope.models.gpt import GPTConfig
from normscope.storage.json_files import JsonSource

_NORMS = ("norm", "qk_norm")
_OBJECTS: Mapping[str, type] = {"norm": NormSpec, "qk_norm": NormSpec, "rotary_scaling": RotaryScaling}


def config_to_json(config: GPTConfig) -> dict[str, Any]:
    """Convert a config to JSON-compatible values.

    >>> from normscope.models.presets import nanochat
    >>> settings = config_to_json(nanochat(depth=4))
    >>> settings["depth"], settings["norm"]["scope"]
    (4, '... [d]')
    >>> config_from_json(settings) == nanochat(depth=4)
    True
    """
    settings = dataclasses.asdict(config)
    if not isinstance(config.init, str):
        raise ConfigError(
            f"init={config.init!r} cannot be saved as JSON: only names can\nfix: use the name of an initialization"
        )
    for name in _NORMS:
        if settings[name] is not None:
            settings[name]["sizes"] = dict(settings[name]["sizes"])
    return settings


def config_from_json(settings: Mapping[str, Any]) -> GPTConfig:
    """Rebuild a config from `config_to_json`; missing settings get their defaults, unknown ones are an error."""
    check_fields("the model's", settings, GPTConfig)
    for name, kind in _OBJECTS.items():
        value = settings.get(name)
        if value is not None:
            if not isinstance(value, Mapping):
                raise ConfigError(f"{name!r} of the model's config must be an object, but got {value!r:.40}")
            check_fields(f"the {name}'s", value, kind)
    return JsonSource("the model's config", "restore it from a copy", ConfigError).convert(settings, GPTConfig)
