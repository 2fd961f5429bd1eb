"""The residual stream: exponential growth, and branches that dominate it."""

import math

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView, module_ref
from normscope.diagnostics.findings.stacks import trend
from normscope.diagnostics.record import ModuleRecord, ResidualJoin
from normscope.render.formatting import format_percent, format_short

MIN_JOINS = 6
"""Three blocks of two branches."""

MAX_GROWTH = 10.0
"""Growth of the stream over the second half of its additions. Branches of equal rms give sqrt(2) (the variance grows
linearly with depth), branches that grow linearly with depth give 2^1.5 = 2.8, quadratically 2^2.5 = 5.7. Anything
beyond 10 is exponential growth: each branch is proportional to the stream itself."""

NOTE_RATIO = 10.0
"""A branch this many times larger than the stream leaves 1 / sqrt(1 + 10^2) = 10% of the previous stream."""

WARNING_RATIO = 100.0
"""Leaves 1%: a warning, unless a few elements cause it."""

MASSIVE_KURTOSIS = 100.0
"""Kurtosis of a branch from which on a few elements dominate its rms. Trained language models have a block that writes
one or two features of the first token, hundreds of times larger than the stream (Sun et al. 2024, "Massive
Activations"); a normal distribution has 3."""


def check_residual_stream(view: RecordView) -> list[Finding]:
    joins = [(module, join) for module in view.ran for join in module.joins if join.total > 0]
    if len(joins) < MIN_JOINS:
        return []
    return [*_growth(view, joins), *_dominating_branches(view, joins)]


def _growth(view: RecordView, joins: list[tuple[ModuleRecord, ResidualJoin]]) -> list[Finding]:
    """Growth over the second half: the first branch may well be larger than a small initial embedding."""
    half = joins[len(joins) // 2 - 1 :]
    found = trend([join.total for _, join in half])
    if found is None or found.total < MAX_GROWTH or found.steady < MAX_GROWTH**0.5:
        return []
    last, ratio = half[-1][0], half[-1][1].branch / max(half[-1][1].stream, 1e-30)
    return [
        Finding(
            "residual-stream-grows",
            "warning",
            last.name,
            f"the residual stream grows {format_short(found.total)} times over its last {len(half) - 1} additions, up "
            f"to {module_ref(last.name)}",
            {
                "growth in second half": found.total,
                "factor per addition": found.layer,
                "first rms": joins[0][1].total,
                "last rms": joins[-1][1].total,
                "last branch / stream": ratio,
            },
            f"Each addition scales the stream by about {format_short(found.layer)}: the branches are proportional to "
            "the stream, and the last blocks dominate the first ones in the output and in the gradient.",
            view.initialization_advice(
                "add a norm at the start of every branch (pre-norm), or use a smaller initialization for the last "
                "weight of each branch: divide it by sqrt(2 * depth), or set it to zero"
            ),
        )
    ]


def _dominating_branches(view: RecordView, joins: list[tuple[ModuleRecord, ResidualJoin]]) -> list[Finding]:
    """Branches after the first block that are much larger than the stream."""
    found = []
    for module, join in joins[2:]:
        ratio = join.branch / join.stream if join.stream > 0 else 0.0
        if ratio >= NOTE_RATIO and join.post_norm is None:
            found.append(_branch_finding(view, module, join, ratio))
    return found


def _branch_finding(view: RecordView, module: ModuleRecord, join: ResidualJoin, ratio: float) -> Finding:
    source = view.modules.get(join.branch_source or "")
    massive = source is None or source.output is None or source.output.kurtosis >= MASSIVE_KURTOSIS
    name = module_ref(join.branch_source or module.name)
    return Finding(
        "residual-branch-dominates",
        "warning" if ratio >= WARNING_RATIO and not massive else "note",
        module.name,
        f"a branch of {module_ref(module.name)} is {format_short(ratio)} times larger than the residual stream it is "
        "added to",
        {"branch / stream": ratio, "stream": join.stream, "branch": join.branch},
        f"After the addition, {format_percent(1 / math.hypot(1, ratio))} of the stream's rms is the previous stream; "
        f"the rest comes from {name}.",
        view.initialization_advice(
            f"check the last weight of {name} and whatever scales its output; use a smaller initialization"
        ),
    )
