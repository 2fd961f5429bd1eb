"""Notices shown before the first step of a new or resumed run."""

from collections.abc import Sequence

import torch

from normscope.ops.kernel_mode import select_backend
from normscope.ops.numba_loader import has_compiled_kernels, kernels


def startup_notices(
    step: int, dropped: Sequence[int], missing_text: Sequence[str], changes: Sequence[str], device: torch.device
) -> list[str]:
    """The notices for a run, one sentence each.

    Args:
        step: Number of steps done.
        dropped: Later checkpoints that are dropped because the run resumes from an earlier one.
        missing_text: Source files of the corpus that no longer exist.
        changes: Differences to the environment of the checkpoint.
        device: The run's device.

    >>> startup_notices(50, [100, 150], [], [], torch.device("meta"))
    ['resuming from step 50: later checkpoints are dropped (100, 150)']
    """
    notices = []
    if dropped:
        notices.append(f"resuming from step {step}: later checkpoints are dropped ({', '.join(map(str, dropped))})")
    if missing_text:
        notices.append(f"source text not found: {', '.join(missing_text)}. The run continues with its saved tokens")
    if changes:
        notices.append(f"environment changed: {', '.join(changes)}. Results may differ in the last bits from here on")
    if (
        device.type == "cpu"
        and select_backend() == "fused"
        and kernels("rows") is not None
        and not has_compiled_kernels()
    ):
        notices.append("compiling kernels for this machine (once): the first steps take a few seconds longer")
    return notices
