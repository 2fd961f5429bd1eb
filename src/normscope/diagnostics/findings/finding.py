"""`Finding`, `FindingKind` (its text), `RecordView` (what checks see of a record) and `check` (registers a check).

How to add a finding is described in `__init__.py`; each topic has a file of its own next to this one.
"""

import re
import string
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from normscope.diagnostics.module_names import module_ref, outer_names
from normscope.diagnostics.record import ModuleRecord, ParameterRecord, XrayRecord
from normscope.diagnostics.stats.tensors import AttentionStats, NormStats, ResidualJoin, TensorStats
from normscope.render.formatting import format_percent, format_short

SEVERITIES = ("error", "warning", "note")
"""An error breaks the model, a warning slows or hurts training, a note is for information."""

FEW_STEPS = 10
"""After more steps than this, a weight may be far from its initialization."""

CHANGED = 0.1
"""Fraction of a weight's rms. Learning rates decay, so earlier, unobserved steps may have been larger."""


@dataclass(frozen=True)
class Finding:
    """One problem that an x-ray found.

    Args:
        name: the kind of problem, such as `dead-units`.
        severity: `error`, `warning` or `note`.
        module: full name of the affected module; "" for the whole model.
        title: one line that states the problem and its key number.
        evidence: the measured values, by name.
        why: a paragraph on the effect on the model.
        fix: what to change. Lines after the first are code.

    >>> print(Finding("unused", "note", "head", "`head` never ran", why="It is not trained.", fix="remove it"))
    Note: `head` never ran. It is not trained. Fix: remove it
    """

    name: str
    severity: str
    module: str
    title: str
    evidence: dict[str, float | str] = field(default_factory=dict, repr=False)
    why: str = field(default="", repr=False)
    fix: str = field(default="", repr=False)

    def __str__(self) -> str:
        """One paragraph: what, why and what to do; the code of a fix is below it."""
        sentences = [f"{self.severity.capitalize()}: {self.title}.", self.why, f"Fix: {self.fix}" if self.fix else ""]
        return " ".join(sentence for sentence in sentences if sentence)


class FindingKind:
    """A kind of finding: its name, and templates of its title, explanation and fix.

    Templates contain evidence by its name, other values that the check passes, and `{module}`. Floats are shown with
    three digits, or as a percentage with `:%`.

    >>> collapsed = FindingKind('''
    ... attention-collapsed: attention has collapsed in {module}: {peaked:%} of queries attend to a single key
    ... why: The scores before softmax have a standard deviation of {score std}. All other keys get weights that
    ... round to zero.
    ... fix: divide the scores by sqrt(head_dim)
    ... ''')
    >>> found = collapsed.found_in("blocks.0.attn", {"peaked": 0.9312, "score std": 31.25})
    >>> found.name, found.title
    ('attention-collapsed', 'attention has collapsed in `blocks.0.attn`: 93.1% of queries attend to a single key')
    """

    def __init__(self, text: str) -> None:
        self.name, _, rest = text.strip().partition(": ")
        title, why, fix = (" ".join(part.split()) for part in re.split(r"\n\s*(?:why|fix): ", rest))
        self._templates = title, why, fix

    def found_in(
        self, module: ModuleRecord | str, evidence: Mapping[str, Any], severity: str = "warning", **values: object
    ) -> Finding:
        """Create a finding of this kind in a module. Evidence that is None is omitted."""
        name = module if isinstance(module, str) else module.name
        known = {key: value for key, value in evidence.items() if value is not None}
        values = {"module": module_ref(name), **known, **values}
        title, why, fix = (_TextFormatter().vformat(template, (), values) for template in self._templates)
        return Finding(self.name, severity, name, title, known, why, fix)


class _TextFormatter(string.Formatter):
    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        return kwargs[field_name], field_name  # names of evidence have spaces and slashes

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "%":
            return format_percent(value)
        return format_short(value) if isinstance(value, float) and not format_spec else format(value, format_spec)


def in_line(line: str | None) -> str:
    """A line of code as it appears in messages: ` (train.py:12)`, or nothing if it is unknown."""
    return f" ({line})" if line else ""


class RecordView:
    """A record, with data that several checks share computed once.

    Args:
        record: the record.
    """

    def __init__(self, record: XrayRecord) -> None:
        self.record = record

    @cached_property
    def modules(self) -> dict[str, ModuleRecord]:
        """Modules by name. A shared module appears only under its first name."""
        return {module.name: module for module in self.record.modules if module.alias_of is None}

    @cached_property
    def ran(self) -> list[ModuleRecord]:
        """Modules that ran, in order of their first call."""
        found = [module for module in self.modules.values() if module.order is not None]
        return sorted(found, key=lambda module: module.order or 0)

    @cached_property
    def parameters(self) -> list[tuple[ModuleRecord, ParameterRecord]]:
        """All parameters with their modules, in model order."""
        return [(module, parameter) for module in self.modules.values() for parameter in module.parameters]

    @cached_property
    def matrices(self) -> list[tuple[ModuleRecord, ParameterRecord]]:
        """Each distinct weight with two or more dimensions, with its module, in model order."""
        return [(m, p) for m, p in self.parameters if p.alias_of is None and p.is_matrix and m.norm is None]

    @cached_property
    def linear(self) -> list[tuple[ModuleRecord, ParameterRecord]]:
        """Linear layers and convolutions that ran, with their weights."""
        return [(module, weight) for module in self.ran if (weight := module.linear_weight) is not None]

    @cached_property
    def norms(self) -> list[tuple[ModuleRecord, NormStats]]:
        return [(module, module.norm) for module in self.ran if module.norm is not None]

    @cached_property
    def attentions(self) -> list[tuple[ModuleRecord, AttentionStats]]:
        return [(module, module.attention) for module in self.ran if module.attention is not None]

    @cached_property
    def joins(self) -> list[tuple[ModuleRecord, ResidualJoin]]:
        """Residual additions, with the modules that perform them."""
        return [(module, join) for module in self.ran for join in module.joins]

    @cached_property
    def readers(self) -> dict[str, list[ModuleRecord]]:
        """For each module, the modules that read its output."""
        return self.record.readers

    @cached_property
    def adders(self) -> dict[str, list[ModuleRecord]]:
        """For each module whose output takes part in a residual addition, the modules that perform the addition."""
        found: dict[str, list[ModuleRecord]] = defaultdict(list)
        for module, join in self.joins:
            for name in (join.stream_source, join.branch_source):
                if name is not None:
                    found[name].append(module)
        return found

    @cached_property
    def gradients(self) -> list[TensorStats]:
        """Gradients of all parameters that got one."""
        return [parameter.gradient for _, parameter in self.parameters if parameter.gradient is not None]

    @cached_property
    def has_gradients(self) -> bool:
        """Whether a backward pass was recorded: some parameter has a nonzero gradient."""
        return any(gradient.rms > 0 for gradient in self.gradients)

    @cached_property
    def executed_names(self) -> set[str]:
        """Names of modules that ran or contain one that ran."""
        return {name for module in self.ran for name in (module.name, *outer_names(module.name))}

    @cached_property
    def names_with_gradient(self) -> set[str]:
        """Names of modules that have a parameter with a gradient, directly or in a submodule."""
        names = {module.name for module, parameter in self.parameters if parameter.gradient is not None}
        return names | {outer for name in names for outer in outer_names(name)}

    @cached_property
    def total_steps(self) -> int | None:
        """Training steps so far, as counted by the run or the optimizers; None if unknown."""
        numbers = [self.record.steps_before, *(step.number for step in self.record.steps)]
        return max((number for number in numbers if number is not None), default=None)

    @cached_property
    def steps_before_xray(self) -> int:
        """Training steps before the x-ray started, as far as known."""
        if self.record.steps_before is not None:
            return self.record.steps_before
        first: dict[str, int] = {}
        for step in self.record.steps:
            first.setdefault(step.optimizer, step.number or 1)
        return max(first.values(), default=1) - 1

    def at_start(self, weight: ParameterRecord) -> TensorStats | None:
        """The values when the x-ray began, if training had hardly begun by then."""
        return weight.initial if self.steps_before_xray <= FEW_STEPS else None

    def is_before_norm(self, module: ModuleRecord) -> bool:
        """Whether only norms read its output, so that its scale does not matter."""
        readers = self.readers.get(module.name, [])
        return bool(readers) and all(reader.norm is not None for reader in readers)

    def is_trained(self, weight: ParameterRecord) -> bool:
        """Whether training has changed a weight so much that it says nothing about its initialization."""
        made = self.total_steps or len(self.record.steps)
        return made > FEW_STEPS or made * (weight.update_rms or 0.0) >= CHANGED * weight.values.rms > 0

    @cached_property
    def after_training_advice(self) -> str:
        """Prefix of advice on initialization: for a trained model, suggest the optimizer settings first."""
        if (self.total_steps or 0) <= FEW_STEPS:
            return ""
        first = "if the model was healthy at initialization, lower the learning rate, clip gradients or add warmup"
        return f"{first}; otherwise "

    def execution_order(self, name: str) -> int:
        """Position of a module in the order of execution; modules that never ran come last."""
        module = self.modules.get(name)
        return len(self.record.modules) if module is None or module.order is None else module.order


def zero_weights_fix(name: str) -> str:
    return f"all weights of {module_ref(name)} are zero: initialize them, e.g. nn.init.kaiming_normal_(weight)"


Check = Callable[[RecordView], Iterator[Finding]]
"""Checks a record for one family of problems."""

CHECKS: dict[str, list[Check]] = {"blocking": [], "structural": [], "numeric": []}
"""All checks, by stage.

blocking: look for values that make all statistics meaningless.
structural: don't depend on what the tensors contain.
numeric: use tensor statistics; skipped after a blocking problem, because they would only report its consequences.
"""


def check(stage: Literal["blocking", "structural", "numeric"]) -> Callable[[Check], Check]:
    """Register a function as a check of this stage."""

    def register(function: Check) -> Check:
        CHECKS[stage].append(function)
        return function

    return register
