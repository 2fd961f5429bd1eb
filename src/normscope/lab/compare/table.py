"""A comparison's ranked table, for a terminal and for a page, and what one should know before believing it."""

from collections.abc import Mapping

from normscope.lab.compare.ranking import Ranked, Ranking
from normscope.lab.compare.study import Comparison
from normscope.lab.compare.summary import UNIT, ends
from normscope.lab.compare.variants import leaks_future
from normscope.lab.report.describe import BUILT_IN
from normscope.lab.tuning import best_lr_at_edge
from normscope.render.formatting import format_count, format_number

COST_MAY_DIFFER = 1.5
"""From here on a reader would ask whether the better one only did more work."""


BEHIND = "behind the best (95%)"
UNSEEN = 0.1
"""Nats a byte: a difference that may be as large as this, and was not found, is worth more seeds."""


def heading(found: Comparison) -> str:
    """With what budget."""
    text = _text(next(iter(found.settings.values()))["text"])
    return (
        f"{found.steps:,} steps each, seeds 0 to {len(found.runs.seeds) - 1}, {text}; loss in {UNIT} of held-out text"
    )


def _text(text: str | Mapping[str, str]) -> str:
    return BUILT_IN if isinstance(text, str) else text["name"]


def table(found: Comparison, ranking: Ranking) -> str:
    """The ranked table, for a terminal."""
    rows = [[str(place), *row] for place, row in enumerate(rows_of(found, ranking), start=1)]
    rows = [["", *columns(ranking)], *rows]
    wide = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    left = (1, 3)  # the name, and how far it is behind: the rest are numbers, which end below each other
    lines = [
        "  ".join(cell.ljust(wide[i]) if i in left else cell.rjust(wide[i]) for i, cell in enumerate(row))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def timing(found: Comparison) -> str:
    """What ms/step is: it is measured while other runs go on, and so is no figure for a machine of its own."""
    at_once = "one run at a time" if found.workers == 1 else f"{found.workers} runs at once"
    return (
        f"ms/step is processor time on one core, measured with {at_once}: compare it between these variants, not "
        f"with other runs or machines"
    )


def columns(ranking: Ranking) -> list[str]:
    """What the columns are; that of failures is there if there are any."""
    names = ["variant", "loss", BEHIND, "lr", "weights", "ms/step"]
    return [*names, "failed"] if _any_failed(ranking) else names


def rows_of(found: Comparison, ranking: Ranking) -> list[list[str]]:
    """The cells of each variant, the best first."""
    return [_row(found, ranking, one) for one in ranking.ranked]


def _row(found: Comparison, ranking: Ranking, one: Ranked) -> list[str]:
    pair = ranking.behind(one)
    cells = [
        one.name,
        f"{one.loss.middle:.3f}",
        ""
        if pair is None or ranking.best.learnt_nothing
        else f"{format_number(pair.behind.middle)} ({ends(pair.behind)})",
        f"{found.runs.lrs[one.name]:g}",
        format_count(found.runs.mean(one.name, "parameters")),
        format_number(1000 * found.seconds[one.name] / found.steps),
    ]
    return [*cells, f"{one.failed} of {one.seeds}"] if _any_failed(ranking) else cells


def _any_failed(ranking: Ranking) -> bool:
    return any(one.failed for one in ranking.ranked)


def notices(found: Comparison, ranking: Ranking) -> list[str]:
    """What one should know before believing it."""
    leaking = [name for name, settings in found.settings.items() if leaks_future(settings)]
    edge = best_lr_at_edge(found.tuned)
    lost = [name for name, runs in found.runs.metrics.items() if any(run["diverged"] for run in runs)]
    said = _costs(found)
    if leaking:
        said.append(
            f"in training the norm of {', '.join(leaking)} sees later tokens; it is judged with running statistics, "
            f"which do not"
        )
    if edge:
        said.append(f"the best rate of {', '.join(edge)} is at the edge of those tried; try further: --lr")
    if lost:
        said.append(f"with a seed or more {', '.join(lost)} stopped being finite, and counts as knowing nothing")
    open_pairs = [pair for pair in ranking.pairs.values() if not pair.differs and pair.behind.high > UNSEEN]
    if open_pairs and not any(one.failed for one in ranking.ranked):
        largest = format_number(max(pair.behind.high for pair in open_pairs))
        more = 2 * len(found.runs.seeds)
        said.append(f"too few seeds to tell some apart: up to {largest} {UNIT} may be between them; try --seeds {more}")
    if any(one.learnt_nothing for one in ranking.ranked):
        said.append("what learns nothing may need a smaller --lr, more --minutes, or a norm")
    return said


def _costs(found: Comparison) -> list[str]:
    """Steps are the same for all; what a step costs, and what it sees, need not be."""
    said = []
    seconds = {name: value for name, value in found.seconds.items() if value > 0}
    if seconds:
        slow, quick = max(seconds, key=seconds.__getitem__), min(seconds, key=seconds.__getitem__)
        times = seconds[slow] / seconds[quick]
        if times > COST_MAY_DIFFER:
            longer = f"one of {slow} takes {times:.1f} times as long as one of {quick}"
            said.append(f"all had as many steps, not as much time: {longer}")
    if len({settings["model"]["context"] for settings in found.settings.values()}) > 1:
        said.append("a step of a longer context sees more bytes, and with the same seed not the same ones")
    return said
