"""A pytest plugin that makes numba and llvmlite unimportable."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec


class Missing(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def pytest_configure() -> None:
    assert "numba" not in sys.modules
    sys.meta_path.insert(0, Missing())
