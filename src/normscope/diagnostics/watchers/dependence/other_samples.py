"""Find outputs that depend on other samples of the batch."""

from collections.abc import Callable, Sequence

from torch import Tensor

from normscope.diagnostics.module_names import join_names
from normscope.diagnostics.stats.dependence import MixingRecord
from normscope.diagnostics.watchers.dependence.changes import (
    changing_sample,
    compare_calls,
    difference,
    has_time_first,
    tolerance_of,
)
from normscope.diagnostics.watchers.dependence.kept_call import KeptCall, only_input
from normscope.tracing.experiments import Experiment


def find_mixing(
    name: str,
    called: KeptCall,
    experiment: Experiment,
    base: list[Tensor],
    reductions: dict[str, str],
    is_time_first: bool | None,
) -> MixingRecord | None:
    """Change the first sample, and compare the outputs of the others."""
    x = only_input(called)
    if x is None or len(x) < 2:
        return None
    count = len(x)
    change = changing_sample(x, 0)
    after = experiment.run(change)
    for a, b in zip(base, after, strict=True):
        if a.dim() == 0 or len(a) != count or a.shape != b.shape or (a.dim() >= 2 and a.shape[1] == count):
            continue
        change_of_others, own = difference(a[1:], b[1:]), difference(a[:1], b[:1])
        if not change_of_others > tolerance_of(a) or (
            is_time_first if is_time_first is not None else has_time_first(x, experiment, base)
        ):
            continue
        module, kind = _mixing_module(experiment, change, count)
        full = join_names(name, module)
        inner = dict(called.module.named_modules()).get(module)
        if "batch" in kind.lower():  # a batch norm without running statistics, or the standard deviation of a batch
            continue
        return MixingRecord(
            full,
            kind,
            change_of_others / max(own, change_of_others),
            x.dim() + (not x.is_floating_point()),  # an embedding adds one
            len(called.batches),
            reductions.get(full),
            getattr(inner, "batch_first", None) is False,
        )
    return None


def _mixing_module(experiment: Experiment, change: Callable[[Tensor], Tensor], count: int) -> tuple[str, str]:
    def others_change(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool | None:
        found: bool | None = None
        for a, b in zip(before, after, strict=False):
            if a.dim() and len(a) == count and a.shape == b.shape:
                tolerance = tolerance_of(a) if a.is_floating_point() else 0.0
                found = bool(found) or difference(a[1:].double(), b[1:].double()) > tolerance
        return found

    for name, inputs, outputs in compare_calls(experiment, change):
        if others_change(*inputs) is False and others_change(*outputs):
            return name, type(experiment.module(name)).__name__
    return "", type(experiment.module("")).__name__
