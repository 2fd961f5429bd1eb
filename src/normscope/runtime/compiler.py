"""What torch.compile needs on a CPU, asked for before a run begins and not in its first step."""

import os
import shutil

import torch

from normscope.errors import ConfigError


def cpp_compiler() -> str | None:
    """The name of a C++ compiler that is there."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++", "cl")
    return next((name for name in names if name and shutil.which(name)), None)


def check_compile(wanted: bool, device: torch.device) -> None:
    """Refuse to compile without a compiler."""
    if wanted and device.type == "cpu" and cpp_compiler() is None:
        raise ConfigError(
            "torch.compile needs a C++ compiler, and none was found\nfix: install one, or train without --compile"
        )
