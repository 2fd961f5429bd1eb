"""Whether the fused kernels can run, and whether they are already compiled."""

import os
from pathlib import Path

from normscope.ops.operation import KernelError, fused_module


def kernels_available() -> bool:
    """Return whether the kernels can be imported; after one warning if numba is missing or fails."""
    try:
        fused_module("row_norm")
    except KernelError:
        return False
    return True


def has_compiled_kernels() -> bool:
    """Return whether compiled kernels of this version are cached on disk, so that the first call does not compile."""
    try:
        version = fused_module("code_cache").folder_name()
    except KernelError:
        return False
    beside = Path(__file__).parent / "fused" / "__pycache__"
    folders = [Path(os.environ["NUMBA_CACHE_DIR"])] if "NUMBA_CACHE_DIR" in os.environ else [beside]
    return any(next(folder.rglob(f"{version}/*.nbi"), None) is not None for folder in folders)
