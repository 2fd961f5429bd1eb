"""normscope: transformer blocks that you can read, train and see through.

Names are loaded when they are first used, so that `import normscope` does not wait for torch: see `__init__.pyi`.
"""

import importlib
import importlib.util
import pkgutil
from typing import Any

from normscope._version import __version__ as __version__


def _public_names() -> dict[str, str]:
    """The module of each name in the stub, whose lines read `from MODULE import NAME as NAME`."""
    stub = pkgutil.get_data(__name__, "__init__.pyi")
    assert stub is not None, "__init__.pyi belongs to the package"
    lines = [line.split() for line in stub.decode().splitlines() if line.startswith("from ")]
    return {name: module for _, module, _, name, *_ in lines}


_MODULE_OF = _public_names()

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = value  # cached for the next lookup
        return value
    if importlib.util.find_spec(f"normscope.{name}") is not None:
        return importlib.import_module(f"normscope.{name}")  # a subpackage: normscope.errors, normscope.blocks
    raise AttributeError(f"module 'normscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
