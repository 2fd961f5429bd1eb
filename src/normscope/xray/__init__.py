"""The x-ray: the signal in every layer of any PyTorch model, and what is wrong with it.

The room is also its main function, `with normscope.xray(model) as x: ...`, so it can be called like one.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope.xray.probe import Xray


class _Callable(ModuleType):
    def __call__(self, model: Any, *, label: str = "") -> "Xray":
        """Look at whatever happens to the model inside of the block: see `normscope.xray.probe.Xray`."""
        from normscope.xray.probe import Xray  # brings torch

        return Xray(model, label=label)


sys.modules[__name__].__class__ = _Callable
