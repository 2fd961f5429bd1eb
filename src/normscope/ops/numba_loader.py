"""The kernels themselves, which bring numba: loaded when one is first needed, and not at all where that fails."""

import os
from pathlib import Path
from types import ModuleType

from normscope.ops import kernel_mode

_loaded: dict[str, ModuleType] = {}


def kernels(name: str) -> ModuleType | None:
    """The kernels of that name; None, after one notice, where numba is missing or fails."""
    if name not in _loaded:
        try:
            from normscope.ops import channel_norm as channels
            from normscope.ops import rotary
            from normscope.ops import row_norm as rows
        except Exception as error:  # whatever numba's reason may be, the readable forms do without it
            kernel_mode.disable_kernels(error)
            return None
        _loaded.update(channels=channels, rotary=rotary, rows=rows)
    return _loaded[name]


def has_compiled_kernels() -> bool:
    """Whether numba has kept compiled kernels from an earlier process, so that the first call takes no time."""
    beside = Path(__file__).parent / "fused" / "__pycache__"
    places = [Path(os.environ["NUMBA_CACHE_DIR"])] if "NUMBA_CACHE_DIR" in os.environ else [beside]
    return any(next(place.rglob("*.nbi"), None) is not None for place in places)
