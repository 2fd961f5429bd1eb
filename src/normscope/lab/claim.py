"""A claim: a falsifiable statement and the experiment that tests it, both written before the run; and its budget."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from normscope.checks import check_positive_int, short_repr
from normscope.errors import ConfigError
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.results.verdict import Metrics, Question, Verdict
from normscope.render.chart import Chart

Kind = Literal["exact", "measured", "trained"]
Settings = Mapping[str, Any]
"""The configuration of a run, as JSON values."""
Variants = Mapping[str, Settings]
Measure = Callable[[Settings, int], Metrics]
"""One run: settings and seed -> metrics. A module-level function, so that worker processes can import it."""
Equal = Literal["steps", "parameters", "compute"]
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


@dataclass(frozen=True)
class LRTuning:
    """The learning rate search: every variant tries the same values, with seeds that are not used for the verdict.

    Args:
        lrs: learning rates to try, in increasing order; the best has the smallest loss.
        seeds: runs per learning rate.
        shared: the variant whose learning rate a variant uses, by name; its own by default.
    """

    lrs: tuple[float, ...]
    seeds: int = 1
    shared: Callable[[str], str] = lambda name: name

    def __post_init__(self) -> None:
        check_positive_int(seeds=self.seeds)
        if not self.lrs or list(self.lrs) != sorted(set(self.lrs)):
            raise ConfigError(f"lrs={self.lrs} must be distinct and in increasing order")


@dataclass(frozen=True)
class Experiment:
    """What a claim runs.

    Args:
        variants: settings by variant name, for a budget.
        measure: one run.
        questions: asked of the metrics; the claim is supported if all of them are.
        charts: figures for the report; the first shows the claim at a glance.
        tuning: the learning rate search; None if there is no learning rate, or if it is the variable under study.
        equal: the quantity that must be equal for all variants; other runs are rejected.
    """

    variants: Callable[[Budget], Variants]
    measure: Measure
    questions: Callable[[Budget], Sequence[Question]]
    charts: Callable[[VariantRuns], Sequence[Chart]]
    tuning: Callable[[Budget], LRTuning] | None = None
    equal: Equal = "steps"


@dataclass(frozen=True)
class Claim:
    """A claim from the literature: the fields of its TOML file, and its experiment.

    Args:
        name: what commands call it; the name of its two files.
        experiment: what is run.
        number: position in the list of claims.
        kind: exact, an identity that must hold for every seed; measured, a ratio of times or sizes, whose runs have the
            machine to themselves; trained, subject to seed noise.
        statement: what is claimed.
        source: who claims it.
        design: how it is tested, and on what data.
        rule: the decision rule in words; the questions state the same in numbers.
        supported, contradicted, inconclusive: what each verdict means for someone who builds a model.
        remark: further context, for instance about a source that cannot be found.
        withdrawn: why the verdict does not stand until the claim is redone; metrics are still shown.
        revised: what changed in the design after a first run, with seeds 0 to 4, was inspected.
        first_verdict: the verdict of that first run, if it differed.
    """

    name: str
    experiment: Experiment
    number: int
    kind: Kind
    statement: str
    source: str
    design: str
    rule: str
    supported: str
    contradicted: str
    inconclusive: str
    remark: str = ""
    withdrawn: str = ""
    revised: str = ""
    first_verdict: Verdict | None = None

    def meaning(self, verdict: Verdict) -> str:
        """What a verdict means in practice."""
        return str(getattr(self, verdict))
