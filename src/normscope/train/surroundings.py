"""What the last bits of a run depend on, besides its settings: elsewhere, sums are added up in another order."""

from collections.abc import Mapping

import torch

from normscope.kernels.loading import kernels
from normscope.kernels.switch import form_for


def surroundings(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """What there is here, by name, for a checkpoint to remember."""
    fused = device.type == "cpu" and form_for() == "fused" and kernels("rows") is not None
    return {
        "device": str(device),
        "precision": str(dtype).removeprefix("torch."),
        "threads": str(torch.get_num_threads()),
        "kernels": "fused" if fused else "steps",
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is not as it was, in words; of what was not remembered nothing can be said.

    >>> changes({"threads": "2", "torch": "2.13"}, {"threads": "1", "torch": "2.13", "device": "cpu"})
    ['threads was 2 and is 1']
    """
    return [
        f"{name} was {before[name]} and is {value}" for name, value in now.items() if before.get(name, value) != value
    ]
