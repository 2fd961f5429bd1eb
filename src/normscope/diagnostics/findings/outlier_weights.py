"""Weights that are far larger or smaller than the same weight in other blocks."""

from collections import defaultdict
from collections.abc import Iterator
from statistics import median_high

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import name_pattern, parent_name
from normscope.diagnostics.record import ModuleRecord, ParameterRecord

OUTLIER_INITIALIZATION = FindingKind("""
outlier-weights: the rms of `{weight}` is {ratio} times that of the same weight in other blocks
why: Its rms is {rms}; in the other blocks the median is {median of other blocks}. It was initialized differently, or
loaded from a checkpoint that does not match.
fix: initialize it like the others, with rms {median of other blocks}; if it was loaded, check that the checkpoint fits
the model
""")

OUTLIER_AFTER_TRAINING = FindingKind("""
outlier-weights: the rms of `{weight}` is {ratio} times that of the same weight in other blocks
why: Its rms is {rms}; in the other blocks the median is {median of other blocks}. Training has changed this weight
differently.
fix: check the learning rate of its parameter group and compare its gradient with the other blocks: lower the learning
rate or clip gradients
""")

OUTLIER_RATIO = 10.0
"""Ratio of a weight's rms to the median of the same weight in other blocks. Depth-dependent initializations differ by
sqrt(depth), and training adds a factor of two or three."""

INITIAL_RATIO, LARGE_LAYER = 5.0, 2.5
"""Before training, the same weight has the same scale in all blocks: five times more, with a gain that no
initialization asks for, is a slip."""

MIN_PEERS = 3


@check("numeric")
def check_outlier_weights(view: RecordView) -> Iterator[Finding]:
    """Find matrices whose rms is far from the median of the same weight in other blocks.

    In a sequence of sibling layers the last one is skipped: it may be the output layer, which often starts at zero.
    """
    peers: dict[tuple[str, tuple[int, ...]], list[tuple[ModuleRecord, ParameterRecord]]] = defaultdict(list)
    for module, weight in view.matrices:
        if "*" in name_pattern(module.name) and weight.values.rms > 0:
            peers[name_pattern(f"{module.name}.{weight.name}"), weight.shape].append((module, weight))
    for group in peers.values():
        if len(group) <= MIN_PEERS:
            continue
        siblings = len({parent_name(module.name) for module, _ in group}) == 1
        last = max((m for m, _ in group), key=lambda module: view.execution_order(module.name)) if siblings else None
        starts = [start.rms for _, weight in group if (start := view.at_start(weight)) is not None and start.rms > 0]
        now = [weight.values.rms for _, weight in group]
        sizes = starts if len(starts) == len(group) else now
        for (module, weight), first, size in zip(group, sizes, now, strict=True):
            if module is last:
                continue
            gain = (weight.predicted_gain or 0.0) * first / size
            limit = INITIAL_RATIO if starts and gain >= LARGE_LAYER else OUTLIER_RATIO
            is_trained = view.is_trained(weight)
            for own, others, largest, kind in (
                (first, sizes, limit, OUTLIER_AFTER_TRAINING if is_trained and not starts else OUTLIER_INITIALIZATION),
                (size, now, OUTLIER_RATIO, OUTLIER_AFTER_TRAINING if is_trained else OUTLIER_INITIALIZATION),
            ):
                ratio = own / median_high(others)
                if ratio >= largest or ratio <= 1 / OUTLIER_RATIO:
                    evidence = {"ratio": ratio, "rms": own, "median of other blocks": median_high(others)}
                    yield kind.found_in(module, evidence, weight=f"{module.name}.{weight.name}")
                    break
