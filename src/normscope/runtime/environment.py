"""Settings that OpenMP and MKL read once, when torch loads them: they have to be made before."""

import os
import sys
from collections.abc import Mapping, MutableMapping

SPIN_COUNT = "10000"
"""How often a thread of libgomp looks for new work before it sleeps, unless the user says otherwise.

With libgomp's default of 300,000 a thread that waits for one that isn't scheduled keeps the core from it for
milliseconds. Fewer than this were slower without load; whether the default is faster on an idle machine is what
`benchmarks/busy_machine.py` measures.
"""

REPRODUCIBLE = "AUTO,STRICT"
"""MKL's mode in which a product has the same bits for any number of threads."""

_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def user_decides_waiting(environment: Mapping[str, str]) -> bool:
    """Whether a variable says how threads wait, other than the one that `prepare_environment` sets.

    >>> user_decides_waiting({"GOMP_SPINCOUNT": SPIN_COUNT}), user_decides_waiting({"OMP_WAIT_POLICY": "active"})
    (False, True)
    """
    return any(environment.get(name, SPIN_COUNT) != SPIN_COUNT for name in _WAITING)


def prepare_environment(environment: MutableMapping[str, str] | None = None) -> None:
    """Set what threads do while they wait, and that products don't depend on how many there are.

    A variable that the user has set is left alone. If torch is loaded already, it has read them, and nothing is done.

    >>> environment = {"OMP_WAIT_POLICY": "active"}
    >>> prepare_environment(environment)
    >>> environment
    {'OMP_WAIT_POLICY': 'active', 'MKL_CBWR': 'AUTO,STRICT'}
    """
    if environment is None:
        if "torch" in sys.modules:
            return
        environment = os.environ
    if not user_decides_waiting(environment):
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT
    environment.setdefault("MKL_CBWR", REPRODUCIBLE)
