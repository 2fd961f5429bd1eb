"""The residual stream: whether what is added to it makes it grow without end, or drowns it."""

import math

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, called, short
from normscope.diagnostics.findings.stacks import trend
from normscope.diagnostics.record import ModuleRecord, ResidualJoin

LEAST_JOINS = 6
"""Three blocks of two branches."""

SECOND_HALF = 10.0
"""The growth of the stream over the second half of its joins. Branches of equal size give sqrt(2) (the variance grows
in proportion to depth), branches that grow in proportion to depth give 2^1.5 = 2.8, and by its square 2^2.5 = 5.7. What
is beyond 10 grows exponentially: each branch is in proportion to the stream itself."""

DROWNED = 10.0
"""A branch so many times larger than the stream leaves 1 / sqrt(1 + 10^2) = 10% of what was there."""

LOST = 100.0
"""And of this 1%: then it is a warning, unless it is the work of few numbers."""

FEW_NUMBERS = 100.0
"""The kurtosis of a branch from which few numbers make its size. Trained language models have a block that writes such
to a feature or two of the first token, hundreds of times the stream (Sun et al. 2024, "Massive Activations"); what is
spread evenly has 3."""


def stream_growth(view: View) -> list[Finding]:
    joins = [(module, join) for module in view.ran for join in module.joins if join.total > 0]
    if len(joins) < LEAST_JOINS:
        return []
    return [*_grows(view, joins), *_drowned(view, joins)]


def _grows(view: View, joins: list[tuple[ModuleRecord, ResidualJoin]]) -> list[Finding]:
    """Growth over the second half: the first branch may well be larger than an embedding that starts small."""
    half = joins[len(joins) // 2 - 1 :]
    found = trend([join.total for _, join in half])
    if found is None or found.total < SECOND_HALF or found.steady < SECOND_HALF**0.5:
        return []
    last, ratio = half[-1][0], half[-1][1].branch / max(half[-1][1].stream, 1e-30)
    return [
        Finding(
            "stream-grows",
            "warning",
            last.name,
            f"the residual stream grows {short(found.total)} times in its last {len(half) - 1} additions, up to "
            f"{called(last.name)}",
            {
                "growth of the second half": found.total,
                "per addition": found.layer,
                "first total": joins[0][1].total,
                "last total": joins[-1][1].total,
                "last branch / stream": ratio,
            },
            f"Each addition scales the stream by about {short(found.layer)}, so what a block adds is in proportion to "
            f"the stream, and the last blocks drown the first ones, in the output and in the gradient.",
            view.of_the_start(
                "put a norm at the beginning of every branch (pre-norm), or start the last weight of each branch "
                "small: divide it by sqrt(2 * depth), or set it to zero"
            ),
        )
    ]


def _drowned(view: View, joins: list[tuple[ModuleRecord, ResidualJoin]]) -> list[Finding]:
    """Branches past the first block that are much larger than the stream."""
    found = []
    for module, join in joins[2:]:
        ratio = join.branch / join.stream if join.stream > 0 else 0.0
        if ratio >= DROWNED and join.post_norm is None:
            found.append(_drowned_finding(view, module, join, ratio))
    return found


def _drowned_finding(view: View, module: ModuleRecord, join: ResidualJoin, ratio: float) -> Finding:
    maker = view.modules.get(join.branch_source or "")
    few = maker is None or maker.output is None or maker.output.kurtosis >= FEW_NUMBERS
    name = called(join.branch_source or module.name)
    return Finding(
        "stream-drowned",
        "warning" if ratio >= LOST and not few else "note",
        module.name,
        f"a branch of {called(module.name)} is {short(ratio)} times larger than the stream it is added to",
        {"branch / stream": ratio, "stream": join.stream, "branch": join.branch},
        f"After the addition {short(100 / math.hypot(1, ratio))}% of the stream's size is what was there before; the "
        f"rest is what {name} made.",
        view.of_the_start(f"look at the last weight of {name} and at what scales its output; start it smaller"),
    )
