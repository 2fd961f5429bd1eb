"""Environment variables that OpenMP and MKL read once, when torch is imported."""

import os
import sys
from collections.abc import Mapping, MutableMapping

REPRODUCIBLE = "AUTO,STRICT"
"""MKL mode in which matrix products are bitwise identical for any number of threads."""

_OMP_WAIT_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def user_sets_omp_wait(environment: Mapping[str, str]) -> bool:
    """Whether the user has configured how OpenMP threads wait; otherwise `normscope.runtime.openmp_wait` does.

    >>> user_sets_omp_wait({}), user_sets_omp_wait({"OMP_WAIT_POLICY": "active"})
    (False, True)
    """
    return any(name in environment for name in _OMP_WAIT_VARIABLES)


def set_env_defaults(environment: MutableMapping[str, str] | None = None) -> None:
    """Make MKL's results independent of the number of threads.

    Keeps variables set by the user. Does nothing if torch is already imported.

    >>> environment = {}
    >>> set_env_defaults(environment)
    >>> environment
    {'MKL_CBWR': 'AUTO,STRICT'}
    """
    if environment is None:
        if "torch" in sys.modules:
            return
        environment = os.environ
    environment.setdefault("MKL_CBWR", REPRODUCIBLE)
