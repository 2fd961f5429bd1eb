"""What the last bits of a run depend on, besides its settings: elsewhere, sums are added up in another order."""

import os
from collections.abc import Mapping

import torch

from normscope.ops.kernel_mode import select_backend
from normscope.ops.numba_loader import kernels


def surroundings(device: torch.device, dtype: torch.dtype, threads: int) -> dict[str, str]:
    """What there is here, by name, for a checkpoint to remember.

    Args:
        device, dtype: where and in which type products are computed.
        threads: how many the run has on an idle machine; with fewer, while others use it, it keeps its bits.
    """
    fused = device.type == "cpu" and select_backend() == "fused" and kernels("rows") is not None
    return {
        "device": str(device),
        "precision": str(dtype).removeprefix("torch."),
        "threads": str(threads),
        "kernels": "fused" if fused else "steps",
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "products": os.environ.get("MKL_CBWR", "default") if torch.backends.mkl.is_available() else "default",
    }


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is not as it was, in words; of what was not remembered nothing can be said.

    >>> changes({"threads": "2", "torch": "2.13"}, {"threads": "1", "torch": "2.13", "device": "cpu"})
    ['threads was 2 and is 1']
    """
    return [
        f"{name} was {before[name]} and is {value}" for name, value in now.items() if before.get(name, value) != value
    ]
