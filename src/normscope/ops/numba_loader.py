"""Lazy loading of the fused kernels, which import numba."""

import os
from pathlib import Path
from types import ModuleType

from normscope.ops import kernel_mode

_loaded: dict[str, ModuleType] = {}


def kernels(name: str) -> ModuleType | None:
    """Return a module of kernels; None, after one warning, if numba is missing or fails."""
    if name not in _loaded:
        try:
            from normscope.ops import channel_norm as channels
            from normscope.ops import rotary
            from normscope.ops import row_norm as rows
        except Exception as error:  # whatever the reason, use the reference implementation
            kernel_mode.disable_kernels(error)
            return None
        _loaded.update(channels=channels, rotary=rotary, rows=rows)
    return _loaded[name]


def has_compiled_kernels() -> bool:
    """Return whether numba has cached compiled kernels on disk, so that the first call does not compile."""
    beside = Path(__file__).parent / "fused" / "__pycache__"
    folders = [Path(os.environ["NUMBA_CACHE_DIR"])] if "NUMBA_CACHE_DIR" in os.environ else [beside]
    return any(next(folder.rglob("*.nbi"), None) is not None for folder in folders)
