"""Find the line of the user's code that made a call: the innermost one outside of torch and the x-ray."""

import sys
import sysconfig
from pathlib import Path
from types import FrameType

import torch

_PACKAGE = Path(__file__).parents[2]
_OWN = (Path(torch.__file__).parent, _PACKAGE / "diagnostics", _PACKAGE / "tracing")
_HIDDEN = tuple(f"{folder}/" for folder in _OWN)
_LIBRARY = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))
"""Installed packages are inside the folder of the standard library."""


def source_line() -> str | None:
    """Return `train.py:12`; None if the code is in no file.

    >>> source_line() is None  # as in a doctest
    True
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        is_library = path.startswith(_LIBRARY) and not path.startswith(_INSTALLED)
        if not is_library and not path.startswith(_HIDDEN):
            return None if path.startswith("<") else f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back
    return None
