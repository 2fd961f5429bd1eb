"""The environment that the last bits of a run depend on: device, threads, kernels, library versions."""

import os
from collections.abc import Mapping

import torch

from normscope.ops.kernel_mode import select_backend
from normscope.ops.numba_loader import kernels_available


def environment(device: torch.device, dtype: torch.dtype, threads: int) -> dict[str, str]:
    """Describe the current environment, to be stored in a checkpoint.

    Args:
        device, dtype: Device and dtype of matrix products.
        threads: Number of threads on an idle machine. Using fewer while the machine is busy keeps the bits.
    """
    fused = device.type == "cpu" and select_backend() == "fused" and kernels_available()
    return {
        "device": str(device),
        "precision": str(dtype).removeprefix("torch."),
        "threads": str(threads),
        "kernels": "fused" if fused else "reference",
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkl_cbwr": os.environ.get("MKL_CBWR", "default") if torch.backends.mkl.is_available() else "default",
    }


def environment_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describe what differs; names missing from `before` are ignored.

    >>> environment_changes({"threads": "2", "torch": "2.13"}, {"threads": "1", "torch": "2.13", "device": "cpu"})
    ['threads was 2 and is 1']
    """
    return [
        f"{name} was {before[name]} and is {value}" for name, value in now.items() if before.get(name, value) != value
    ]
