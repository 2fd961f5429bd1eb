"""The cache of compiled kernels on disk.

numba recompiles a function if its own file has changed, but not if a function that it calls has, in another file. So
all kernels are kept in a folder that is named by all of their sources, inside the folder that numba chooses.
"""

import hashlib
import os
import shutil
from contextlib import suppress
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

KEPT_FOLDERS = 8
"""Other versions of the kernels to keep: processes may be using them, and branches are switched back and forth."""
_PREFIX = "kernels-"


def _sources() -> list[Any]:
    """Return every file that compiled code depends on, by name."""
    kernels = [file for file in files("normscope.ops.fused").iterdir() if file.name.endswith(".py")]
    return sorted([*kernels, files("normscope.ops") / "registry.py"], key=lambda file: file.name)


@lru_cache(maxsize=1)
def folder_name() -> str:
    """Return the name of the folder for the current sources, numba and llvmlite."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for file in _sources():
        content = file.read_bytes()
        digest.update(f"\n{file.name} {len(content)}\n".encode() + content)
    return _PREFIX + digest.hexdigest()[:16]


@lru_cache
def _mark_as_used(folder: str) -> None:
    with suppress(OSError):  # not created yet, or not ours
        os.utime(folder)


def remove_old_folders(folder: Path) -> None:
    """Remove the folders of other versions beside this one, except for those that were used last.

    A process that uses a removed one has its code in memory, and compiles the kernels that it has not loaded yet.
    """

    def last_use(other: Path) -> float:
        with suppress(OSError):  # another process removes it, too
            return other.stat().st_mtime
        return 0.0

    others = [other for other in folder.parent.glob(f"{_PREFIX}*") if other != folder]
    for other in sorted(others, key=last_use, reverse=True)[KEPT_FOLDERS:]:
        shutil.rmtree(other, ignore_errors=True)


class _Locator(_CacheLocator):  # type: ignore[misc]
    """The folder that numba chose, and in it the one for the current sources."""

    def __init__(self, chosen: _CacheLocator) -> None:
        self._chosen = chosen

    def get_cache_path(self) -> str:
        return os.path.join(self._chosen.get_cache_path(), folder_name())

    def get_source_stamp(self) -> Any:
        return self._chosen.get_source_stamp()

    def get_disambiguator(self) -> Any:
        return self._chosen.get_disambiguator()

    def ensure_cache_path(self) -> None:
        folder = Path(self.get_cache_path())
        is_new = not folder.exists()
        super().ensure_cache_path()
        if is_new:
            remove_old_folders(folder)


class _Implementation(CompileResultCacheImpl):  # type: ignore[misc]
    @property
    def locator(self) -> _Locator:
        return _Locator(self._locator)


class KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of one function, in the folder for the current sources."""

    _impl_class = _Implementation

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        _mark_as_used(self.cache_path)

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):  # a full disk, or a folder that another process removes: the code runs all the same
            super().save_overload(sig, data)
