"""Settings that OpenMP and MKL read once, when torch loads them: they have to be made before."""

import os
import sys
from collections.abc import Mapping, MutableMapping

REPRODUCIBLE = "AUTO,STRICT"
"""MKL's mode in which a product has the same bits for any number of threads."""

_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def user_sets_omp_wait(environment: Mapping[str, str]) -> bool:
    """Whether a variable says how OpenMP's threads wait. Without one, `normscope.runtime.openmp_wait` decides.

    >>> user_sets_omp_wait({}), user_sets_omp_wait({"OMP_WAIT_POLICY": "active"})
    (False, True)
    """
    return any(name in environment for name in _WAITING)


def set_env_defaults(environment: MutableMapping[str, str] | None = None) -> None:
    """Make MKL's results independent of the number of threads.

    A variable that the user has set is left alone. If torch is loaded already, it has read them, and nothing is done.

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
