"""One file per Hugging Face model family, each with its `FAMILY`. A new file is found without further registration."""

import importlib
import pkgutil
from functools import cache

from normscope.errors import ConfigError
from normscope.interop.config_differences import differing_fields
from normscope.interop.huggingface.family import Family
from normscope.models.gpt import GPTConfig


@cache
def families() -> dict[str, Family]:
    """All families by their model_type."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    found = [importlib.import_module(f"{__name__}.{name}").FAMILY for name in names]
    return {family.model_type: family for family in found}


def family_of(config: GPTConfig) -> Family:
    """Return the family that has models of this config; raises an error that names the fields that none has.

    >>> from normscope.models.presets import llama
    >>> family_of(llama()).model_type, family_of(llama(bias="qkv")).model_type
    ('llama', 'qwen2')
    """
    differing = {family.model_type: differing_fields(config, family.closest(config)) for family in families().values()}
    for name, fields in differing.items():
        if not fields:
            return families()[name]
    nowhere = set.intersection(*map(set, differing.values()))
    closest = min(differing, key=lambda name: len(differing[name]))
    fields = sorted(nowhere) or differing[closest]
    given = ", ".join(f"{name}={getattr(config, name)!r:.80}" for name in fields)
    which = "no Hugging Face family has models" if nowhere else f"{closest}, the closest Hugging Face family, has none"
    raise ConfigError(f"{which} with {given}\nfix: train with another model, such as --preset llama")
