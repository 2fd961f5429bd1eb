"""A claim: a statement that can turn out false, and how it is put to the test. All of it is written before the run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from normscope.checks import check_positive_int
from normscope.errors import ConfigError
from normscope.lab.budget import Budget
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import VERDICTS, Metrics, Question, Verdict
from normscope.render.chart import Chart

Kind = Literal["exact", "measured", "trained"]
Settings = Mapping[str, Any]
"""What a run is told, as JSON has it."""
Measure = Callable[[Settings, int], Metrics]
"""One run: settings and a seed -> figures. A function of a module, so that another process can find it."""
Equal = Literal["steps", "parameters", "compute"]


@dataclass(frozen=True)
class LRTuning:
    """How every variant finds its learning rate: all try the same ones, with seeds that the claim is not judged by.

    Args:
        rates: which ones.
        seeds: how many tries each.
        by: the figure that should be small.
        setting: the name that the rate has in the settings.
        shared: variants that take the rate of another, by name, because the claim asks what happens at that very rate.
    """

    lrs: tuple[float, ...]
    seeds: int = 1
    by: str = "loss"
    setting: str = "lr"
    shared: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive_int(seeds=self.seeds)
        if not self.lrs or list(self.lrs) != sorted(set(self.lrs)):
            raise ConfigError(f"rates={self.lrs} must be given from small to large, each once")


@dataclass(frozen=True)
class Claim:
    """A claim of the field.

    Args:
        number: in the list of claims.
        name: as commands call it.
        kind: exact, an identity that must hold for every seed; measured, a ratio of times or sizes, whose runs get the
            machine for themselves; trained, where chance plays a part.
        statement: what is claimed.
        source: who says so.
        design: how it is tested, and on what.
        rule: what decides, in words; the questions say the same in figures.
        variants: what is compared: settings by name.
        measure: one run.
        questions: asked of the figures; the claim stands if all do.
        charts: pictures, of which the first shows the claim at a glance.
        meaning: for each verdict, what it means for someone who builds a model.
        remark: what else has to be said, for instance of a source that cannot be found.
        tuning: how learning rates are found; None where there are none, or they are what is studied.
        equal: what all variants have the same of; the lab refuses runs where it is not so.
        withdrawn: why its verdict does not stand until the claim is redone; its figures are shown, its verdict is not.
        revised: what was changed in its design after a first run, with seeds 0 to 4, had been looked at.
        first_verdict: the verdict of that first run, if it was another.
    """

    number: int
    name: str
    kind: Kind
    statement: str
    source: str
    design: str
    rule: str
    variants: Callable[[Budget], Mapping[str, Settings]]
    measure: Measure
    questions: Callable[[Budget], Sequence[Question]]
    charts: Callable[[VariantRuns], Sequence[Chart]]
    meaning: Mapping[Verdict, str]
    remark: str = ""
    tuning: Callable[[Budget], LRTuning] | None = None
    equal: Equal = "steps"
    withdrawn: str = ""
    revised: str = ""
    first_verdict: Verdict | None = None

    def __post_init__(self) -> None:
        if set(self.meaning) != set(VERDICTS):
            raise ConfigError(f"the claim {self.name!r} must say what each of {', '.join(VERDICTS)} would mean")
