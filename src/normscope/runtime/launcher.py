"""Start a command once per rank on this machine, as torchrun does, with errors in a line each."""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence

from normscope.checks import check_non_negative, check_positive_int
from normscope.runtime.machine_load import usable_cores

STOPPED = 130
"""The exit code of a command stopped by Ctrl-C."""


def launch(arguments: Sequence[str], nproc: int, max_restarts: int = 0) -> int:
    """Run `normscope` with these arguments in several processes, and return the exit code.

    Args:
        arguments: The arguments of the command.
        nproc: Number of processes.
        max_restarts: How often all of them are started again after one has failed.
    """
    check_positive_int(nproc=nproc)
    check_non_negative(max_restarts=max_restarts)
    # One thread more in all than cores slows all of them down.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // nproc)))
    if sys.platform.startswith("linux"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the ranks talk on this machine only
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed."):  # each has a level of its own
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the ranks say what went wrong
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "normscope", *arguments)
    except SignalException:  # sent to the ranks, which have stopped and saved
        return STOPPED
    except ChildFailedError as error:
        killed = {rank: -one.exitcode for rank, one in error.failures.items() if one.exitcode < 0}
        for rank, number in killed.items():
            reason = " (out of memory?)" if number == signal.SIGKILL else ""
            print(f"error: rank {rank} was ended by {signal.Signals(number).name}{reason}", file=sys.stderr)
        return 1 if killed else error.get_first_failure()[1].exitcode
    return 0
