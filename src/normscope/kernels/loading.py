"""The kernels themselves, which bring numba: loaded when one is first needed, and not at all where that fails."""

from types import ModuleType

from normscope.kernels import switch

_loaded: dict[str, ModuleType] = {}


def kernels(name: str) -> ModuleType | None:
    """The kernels of that name; None, after one notice, where numba is missing or fails."""
    if name not in _loaded:
        try:
            from normscope.kernels import channels, rotary, rows
        except Exception as error:  # whatever numba's reason may be, the readable forms do without it
            switch.give_up(error)
            return None
        _loaded.update(channels=channels, rotary=rotary, rows=rows)
    return _loaded[name]
