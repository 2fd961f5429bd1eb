"""What a user should know before the first step of a run, or before the first after it was resumed."""

from collections.abc import Sequence

import torch

from normscope.ops.kernel_mode import select_backend
from normscope.ops.numba_loader import are_compiled, kernels


def opening_notices(
    step: int, dropped: Sequence[int], missing_text: Sequence[str], changes: Sequence[str], device: torch.device
) -> list[str]:
    """Notices, each a sentence.

    Args:
        step: how many steps are done.
        dropped: the steps whose checkpoints are dropped, because the run goes on from an earlier one.
        missing_text: names of files that the corpus was made from and that are gone.
        changes: what differs from the surroundings of the checkpoint.
        device: what it runs on.

    >>> opening_notices(50, [100, 150], [], [], torch.device("meta"))
    ['what was saved at step 100 and 150 is dropped, for the run goes on from step 50']
    """
    notices = []
    if dropped:
        steps = " and ".join(map(str, dropped))
        notices.append(f"what was saved at step {steps} is dropped, for the run goes on from step {step}")
    if missing_text:
        names = ", ".join(missing_text)
        notices.append(f"{names} cannot be found any more; the run has its tokens, and goes on without")
    if changes:
        notices.append(f"{', '.join(changes)}: from here on the numbers may differ in their last bits")
    if device.type == "cpu" and select_backend() == "fused" and kernels("rows") is not None and not are_compiled():
        notices.append("the kernels are compiled for this machine, once; the first steps take some seconds longer")
    return notices
