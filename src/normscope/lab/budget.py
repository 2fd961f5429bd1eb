"""How much work the lab puts into a claim."""

from dataclasses import dataclass
from typing import Literal, TypeVar

from normscope.checks import check_positive_int, short_repr
from normscope.errors import ConfigError

BudgetName = Literal["quick", "full"]
Value = TypeVar("Value")
MOST_SEEDS = 900
"""The first seed of a claim is 100, and from 1000 on are those by which learning rates are found."""


@dataclass(frozen=True)
class Budget:
    """A budget and its seeds.

    Args:
        name: quick, all claims in a quarter of an hour on two cores; or full, a night.
        seeds: with how many seeds each variant is run.

    >>> quick = get_budget("quick")
    >>> quick.pick(quick=200, full=2000), quick.seeds
    (200, 5)
    """

    name: BudgetName
    seeds: int

    def __post_init__(self) -> None:
        check_positive_int(seeds=self.seeds)
        refuse_many_seeds(self.seeds)

    def pick(self, *, quick: Value, full: Value) -> Value:
        """The one that this budget allows."""
        return quick if self.name == "quick" else full


def refuse_many_seeds(seeds: int) -> None:
    """Refuse seeds that would run into those by which learning rates are found, and lists that fill the memory."""
    if seeds > MOST_SEEDS:
        raise ConfigError(
            f"seeds={short_repr(seeds)} must be at most {MOST_SEEDS:,}\nfix: fewer; 5 is usual, 12 is thorough"
        )


_SEEDS: dict[BudgetName, int] = {"quick": 5, "full": 12}


def get_budget(name: str, seeds: int | None = None) -> Budget:
    """The budget of this name, with its own number of seeds or another."""
    for known, usual in _SEEDS.items():
        if name == known:
            return Budget(known, usual if seeds is None else seeds)
    raise ConfigError(f"there is no budget {name!r}\nfix: quick or full")
