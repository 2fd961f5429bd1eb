"""Check for the C++ compiler that torch.compile needs on a CPU, before a run starts."""

import os
import shutil

import torch

from normscope.errors import ConfigError


def cpp_compiler() -> str | None:
    """Name of an installed C++ compiler; None if there is none."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++", "cl")
    return next((name for name in names if name and shutil.which(name)), None)


def check_compile(wanted: bool, device: torch.device) -> None:
    """Raise if torch.compile is wanted but no compiler is installed."""
    if wanted and device.type == "cpu" and cpp_compiler() is None:
        raise ConfigError("torch.compile needs a C++ compiler, but none was found\nfix: install one, or omit --compile")
