"""A comparison in words: a table, and the sentence that says what was found."""

from collections.abc import Sequence

from normscope.display.words import count, figure
from normscope.lab.compare.ranking import Ranked, ranking
from normscope.lab.compare.study import Comparison
from normscope.lab.compare.variants import leaks_future
from normscope.lab.statistics import Interval
from normscope.lab.tuning import at_the_edge

UNIT = "nats a byte"


def sentence(ranked: Sequence[Ranked]) -> str:
    """What was found, of the best and the one that comes next, and of those that are clearly behind.

    >>> best = Ranked("rms", Interval(2.0, 1.9, 2.1), None)
    >>> sentence([best, Ranked("layer", Interval(2.1, 2.0, 2.2), Interval(0.1, 0.05, 0.15))])
    'With this budget rms is better than layer by 0.100 nats a byte (95% 0.0500 to 0.150).'
    >>> sentence([best, Ranked("layer", Interval(2.1, 2.0, 2.2), Interval(0.01, -0.02, 0.04))])
    'No difference found between rms and layer: 0.0100 nats a byte (95% -0.0200 to 0.0400).'
    """
    best, others = ranked[0], ranked[1:]
    alike, worse = [one for one in others if not one.differs], [one for one in others if one.differs]
    parts = []
    if len(alike) == 1:
        parts.append(f"No difference found between {best.name} and {alike[0].name}: {_by(alike[0].behind)}.")
    elif alike:
        names = ", ".join([best.name, *(one.name for one in alike[:-1])])
        parts.append(f"No difference found between {names} and {alike[-1].name}.")
    if worse:
        parts.append(f"With this budget {best.name} is better than {worse[0].name} by {_by(worse[0].behind)}.")
    if len(worse) > 1:
        parts.append(f"It is better than {', '.join(one.name for one in worse[1:])} too.")
    return " ".join(parts)


def table(found: Comparison) -> str:
    """The ranked table, for a terminal."""
    ranked = ranking(found.runs)
    wide = max(len("variant"), *(len(one.name) for one in ranked))
    lines = [f"{'':>3} {'variant':{wide}}  {'loss':>6}  {'behind the best (95%)':28} {'rate':>6} {'weights':>8}"]
    for place, one in enumerate(ranked, start=1):
        behind = "" if one.behind is None else f"{figure(one.behind.middle)} ({_ends(one.behind)})"
        weights = count(found.runs.mean(one.name, "parameters"))
        rate = found.runs.rates[one.name]
        lines.append(f"{place:>3} {one.name:{wide}}  {one.loss.middle:6.3f}  {behind:28} {rate:>6g} {weights:>8}")
    return "\n".join(line.rstrip() for line in lines)


def notices(found: Comparison) -> list[str]:
    """What one should know before believing it."""
    leaking = [name for name, settings in found.settings.items() if leaks_future(settings)]
    edge = at_the_edge(found.tuned, found.runs.rates)
    lost = [name for name, runs in found.runs.figures.items() if any(run["diverged"] for run in runs)]
    said = []
    if leaking:
        said.append(
            f"in training the norm of {', '.join(leaking)} sees later tokens; it is judged with running statistics, "
            f"which do not"
        )
    if edge:
        said.append(f"the best rate of {', '.join(edge)} is at the edge of those tried; try further: --lr")
    if lost:
        said.append(f"with a seed or more {', '.join(lost)} stopped being finite, and counts as knowing nothing")
    return said


def _by(interval: Interval | None) -> str:
    assert interval is not None
    return f"{figure(interval.middle)} {UNIT} (95% {_ends(interval)})"


def _ends(interval: Interval) -> str:
    return f"{figure(interval.low)} to {figure(interval.high)}"
