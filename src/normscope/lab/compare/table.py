"""The ranked table of a comparison, and notices about its validity."""

from collections.abc import Mapping

from normscope.lab.compare.comparison import Comparison
from normscope.lab.compare.ranking import Ranked, Ranking
from normscope.lab.compare.summary import UNIT
from normscope.lab.compare.variants import leaks_future
from normscope.lab.report.describe import BUILT_IN, format_range
from normscope.lab.running.tuning import best_lr_at_edge
from normscope.render.formatting import format_count, format_number

MAX_COST_RATIO = 1.5
"""Beyond this, the better variant may only have used more compute."""
BEHIND = "behind the best (95%)"
UNDETECTED = 0.1
"""Nats per byte: if an undetected difference may be this large, more seeds are worthwhile."""


def heading(found: Comparison) -> str:
    """Describe the budget of a comparison."""
    text: str | Mapping[str, str] = next(iter(found.settings.values()))["text"]
    name = BUILT_IN if isinstance(text, str) else text["name"]
    seeds = f"seeds 0 to {len(found.runs.seeds) - 1}"
    return f"{found.steps:,} steps each, {seeds}, {name}; loss in {UNIT} on held-out text"


def table(found: Comparison, ranking: Ranking) -> str:
    """Format the ranked table for a terminal."""
    rows = [[str(rank), *row] for rank, row in enumerate(rows_of(found, ranking), start=1)]
    rows = [["", *columns(ranking)], *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = (1, 3)  # variant and difference; numbers are right-aligned
    lines = [
        "  ".join(cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(row))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def timing(found: Comparison) -> str:
    """Explain the ms/step column."""
    runs = "one run at a time" if found.workers == 1 else f"{found.workers} parallel runs"
    return (
        f"ms/step is CPU time on one core, measured with {runs}: compare it between these variants, not with other "
        "runs or machines"
    )


def columns(ranking: Ranking) -> list[str]:
    """Return the column names, with failures if there are any."""
    names = ["variant", "loss", BEHIND, "lr", "parameters", "ms/step"]
    return [*names, "failed"] if _any_failed(ranking) else names


def rows_of(found: Comparison, ranking: Ranking) -> list[list[str]]:
    """Return the cells of each variant, the best first."""
    return [_row(found, ranking, one) for one in ranking.ranked]


def _row(found: Comparison, ranking: Ranking, one: Ranked) -> list[str]:
    pair, behind = ranking.behind(one), ""
    if pair is not None and not ranking.best.all_failed:
        behind = f"{format_number(pair.behind.middle)} ({format_range(pair.behind)})"
    cells = [
        one.name,
        f"{one.loss.middle:.3f}",
        behind,
        f"{found.runs.lrs[one.name]:g}",
        format_count(found.runs.mean(one.name, "parameters")),
        format_number(1000 * found.seconds[one.name] / found.steps),
    ]
    return [*cells, f"{one.failed} of {one.seeds}"] if _any_failed(ranking) else cells


def _any_failed(ranking: Ranking) -> bool:
    return any(one.failed for one in ranking.ranked)


def notices(found: Comparison, ranking: Ranking) -> list[str]:
    """Return what to know before relying on the result."""
    texts = _costs(found)
    leaking = ", ".join(name for name, settings in found.settings.items() if leaks_future(settings))
    if leaking:
        texts.append(
            f"in training the norm of {leaking} sees later tokens; it is evaluated with running statistics, which do "
            "not leak"
        )
    edge = ", ".join(best_lr_at_edge(found.tuned))
    if edge:
        texts.append(f"the best learning rate of {edge} is at the edge of the grid; extend it with --lr")
    diverged = ", ".join(name for name, runs in found.runs.metrics.items() if any(run["diverged"] for run in runs))
    if diverged:
        texts.append(f"{diverged} diverged (NaN or Inf) with at least one seed, which counts as a uniform guess")
    unresolved = [
        pair.behind.high for pair in ranking.pairs.values() if not pair.differs and pair.behind.high > UNDETECTED
    ]
    if unresolved and not _any_failed(ranking):
        texts.append(
            f"too few seeds to separate some variants: they may differ by up to {format_number(max(unresolved))} "
            f"{UNIT}; try --seeds {2 * len(found.runs.seeds)}"
        )
    if any(one.all_failed for one in ranking.ranked):
        texts.append("a variant that learns nothing may need a smaller --lr, more --minutes, or a norm")
    return texts


def _costs(found: Comparison) -> list[str]:
    """Steps are equal for all; their cost and data need not be."""
    texts = []
    seconds = {name: value for name, value in found.seconds.items() if value > 0}
    if seconds:
        slow, fast = max(seconds, key=seconds.__getitem__), min(seconds, key=seconds.__getitem__)
        ratio = seconds[slow] / seconds[fast]
        if ratio > MAX_COST_RATIO:
            texts.append(
                f"equal steps, unequal time: a step of {slow} takes {ratio:.1f} times as long as one of {fast}"
            )
    if len({settings["model"]["context"] for settings in found.settings.values()}) > 1:
        texts.append("a step with a longer context sees more bytes, and different ones for the same seed")
    return texts
