"""One file per Hugging Face model family, each with its `FAMILY`. A new file is found without further registration."""

import importlib
import pkgutil
from functools import cache

from normscope.interop.family import Family


@cache
def families() -> dict[str, Family]:
    """All families by their model_type."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [importlib.import_module(f"{__name__}.{name}").FAMILY for name in names]
    return {family.model_type: family for family in found}
