"""Find the line of the user's code that made a call: the innermost one outside of torch and the x-ray."""

import linecache
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


_MAX_LINES = 6
"""Lines of a call that are read."""


def source_line() -> str | None:
    """Return `train.py:12`; None if the code is in no file.

    >>> source_line() is None  # as in a doctest
    True
    """
    frame = _user_frame()
    if frame is None or frame.f_code.co_filename.startswith("<"):
        return None
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def source_text() -> str:
    """Return the code of the call itself; "" if the code is in no file.

    >>> source_text()  # as in a doctest
    ''
    """
    frame = _user_frame()
    if frame is None or frame.f_code.co_filename.startswith("<"):
        return ""
    text = ""
    for number in range(frame.f_lineno, frame.f_lineno + _MAX_LINES):
        text += linecache.getline(frame.f_code.co_filename, number)
        if text.count("(") <= text.count(")"):
            break
    return text


def _user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        is_library = path.startswith(_LIBRARY) and not path.startswith(_INSTALLED)
        if not is_library and not path.startswith(_HIDDEN):
            return frame
        frame = frame.f_back
    return None
