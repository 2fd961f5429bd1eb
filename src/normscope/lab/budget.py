"""How much work the lab puts into a claim."""

from dataclasses import dataclass
from typing import Literal, TypeVar

from normscope.checks import check_positive_int, short_repr
from normscope.errors import ConfigError

BudgetName = Literal["quick", "full"]
Option = TypeVar("Option")
MAX_SEEDS = 900
"""Seeds of a claim start at 100; those from 1000 on are used to tune learning rates."""
DEFAULT_SEEDS: dict[BudgetName, int] = {"quick": 5, "full": 12}


@dataclass(frozen=True)
class Budget:
    """A budget and its seeds.

    Args:
        name: quick, all claims in about 15 minutes on two cores; or full, overnight.
        seeds: runs per variant.

    >>> quick = get_budget("quick")
    >>> quick.pick(quick=200, full=2000), quick.seeds
    (200, 5)
    """

    name: BudgetName
    seeds: int

    def __post_init__(self) -> None:
        check_positive_int(seeds=self.seeds)
        check_max_seeds(self.seeds)

    def pick(self, *, quick: Option, full: Option) -> Option:
        """Return the option for this budget."""
        return quick if self.name == "quick" else full


def check_max_seeds(seeds: int) -> None:
    """Refuse so many seeds that they would overlap with those for tuning, or exhaust memory."""
    if seeds > MAX_SEEDS:
        raise ConfigError(
            f"seeds={short_repr(seeds)} must be at most {MAX_SEEDS:,}\nfix: use fewer; 5 is usual, 12 is thorough"
        )


def get_budget(name: str, seeds: int | None = None) -> Budget:
    """Return a budget by name, with its default number of seeds or another."""
    for known, default in DEFAULT_SEEDS.items():
        if name == known:
            return Budget(known, default if seeds is None else seeds)
    raise ConfigError(f"unknown budget {name!r}\nfix: quick or full")
