"""Times that are compared with each other."""

from collections.abc import Callable, Mapping


def times_in_turn(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each function once per round and collect the seconds that it returns.

    Neighbors see the machine in the same state, so ratios within a round are reliable. The order rotates, so that none
    is always first.

    >>> order = iter(range(4))
    >>> times_in_turn({"a": lambda: float(next(order)), "b": lambda: float(next(order))}, rounds=2)
    {'a': [0.0, 3.0], 'b': [1.0, 2.0]}
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for _ in range(rounds):
        for name in names:
            times[name].append(runs[name]())
        names = names[1:] + names[:1]
    return times
