"""How many threads a kernel takes: as many as torch, and one where more would not pay or would not be safe."""

import os

import numba
import torch

_WORTH_SHARING = 1 << 15
"""Below so many numbers, waking a second thread takes longer than the work."""

_forked = False


def _note_the_fork() -> None:
    global _forked
    _forked = True


# A forked child (a DataLoader's worker, say) inherits a pool of threads that no longer run.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_the_fork)


def threads_for(numbers: int) -> int:
    """The threads for a kernel over so many numbers, which numba is told of."""
    threads: int = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
    if threads == 1 or numbers < _WORTH_SHARING or _forked:
        return 1
    numba.set_num_threads(threads)
    return threads
