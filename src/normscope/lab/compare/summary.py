"""What a comparison found, as a sentence: of the best, of those next to it or behind it, and of those that failed."""

from collections.abc import Iterable, Sequence

from normscope.lab.compare.ranking import Pair, Ranked, Ranking
from normscope.lab.statistics import Interval
from normscope.render.formatting import format_number, pluralize

UNIT = "nats a byte"


def summarize(found: Ranking) -> str:
    """What was found.

    >>> best, other = Ranked("rms", Interval(2.0, 1.9, 2.1), 0, 5), Ranked("layer", Interval(2.1, 2.0, 2.2), 0, 5)
    >>> summarize(Ranking([best, other], {("rms", "layer"): Pair(Interval(0.1, 0.05, 0.15), None, 5)}))
    'With this budget rms is better than layer by 0.100 nats a byte (95% 0.0500 to 0.150).'
    >>> summarize(Ranking([best, other], {("rms", "layer"): Pair(Interval(0.01, -0.02, 0.04), None, 5)}))
    'No difference found between rms and layer: 0.0100 nats a byte (95% -0.0200 to 0.0400).'
    """
    learnt = [one for one in found.ranked if not one.learnt_nothing]
    lost = [one.name for one in found.ranked if one.learnt_nothing]
    seeds = pluralize(found.best.seeds, "seed")
    if not learnt:
        none = f"Neither {_list(lost, 'nor')}" if len(lost) == 2 else f"None of {_list(lost)}"
        return f"{none} learnt anything: no better than guessing with any of {seeds}."
    parts = _among(found, learnt) if len(learnt) > 1 else [f"Only {found.best.name} learnt anything."]
    if lost:
        were = "was" if len(lost) == 1 else "were"
        parts.append(f"{_list(lost)} {were} no better than guessing with any of {seeds}.")
    return " ".join(parts)


def _among(found: Ranking, learnt: Sequence[Ranked]) -> list[str]:
    """Of those that learnt something, be it with one seed only."""
    best, alike, worse, unsure = learnt[0], [], [], []
    for one in learnt[1:]:
        if found.pairs[best.name, one.name].differs:
            worse.append(one)
        elif best.failed or one.failed:
            unsure.append(one)
        else:
            alike.append(one)
    parts = _alike(found, [one.name for one in alike])
    if worse:
        first = _by(found.pairs[best.name, worse[0].name].behind)
        parts.append(f"With this budget {best.name} is better than {worse[0].name} by {first}.")
    if len(worse) > 1:
        parts.append(f"It is better than {_list(one.name for one in worse[1:])} too.")
    failed = [one for one in learnt if one.failed]
    if failed:
        times = [f"{one.name} failed with {one.failed} of {one.seeds} seeds" for one in failed]
        parts.append(f"{_list(times)}: no better than guessing.")
    return parts + [_where_learnt(best.name, one.name, found.pairs[best.name, one.name]) for one in unsure]


def _alike(found: Ranking, names: Sequence[str]) -> list[str]:
    """Those that cannot be told from the best; two of them may well be told from each other."""
    best = found.best.name
    if not names:
        return []
    if len(names) == 1:
        only = found.pairs[best, names[0]].behind
        return [f"No difference found between {best} and {names[0]}: {_by(only)}."]
    among = [(pair, one) for pair, one in found.pairs.items() if set(pair) <= set(names) and one.differs]
    if not among:
        return [f"No difference found between {_list([best, *names])}."]
    (better, other), pair = max(among, key=lambda one: one[1].behind.middle)
    said = f"{best} cannot be told from {_list(names, 'or')}, but {better} is better than {other} by {_by(pair.behind)}"
    return [f"{said}." if len(among) == 1 else f"{said}; {pluralize(len(among) - 1, 'more pair')} of these differ too."]


def _where_learnt(best: str, other: str, pair: Pair) -> str:
    """A seed that failed makes the interval of all of them wide: what the others say must not be lost in it."""
    seeds = pluralize(pair.learnt, "seed")
    if pair.where_learnt is None:
        return f"Both {best} and {other} learnt with only {seeds}, too few to compare them."
    found = pair.where_learnt
    start = f"Of the {seeds} with which both {best} and {other} learnt"
    if found.low > 0:
        return f"{start}, {best} is better by {_by(found)}."
    if found.high < 0:
        return f"{start}, {other} is better by {_by(Interval(-found.middle, -found.high, -found.low))}."
    return f"{start}, no difference found: {_by(found)}."


def ends(interval: Interval) -> str:
    return f"{format_number(interval.low)} to {format_number(interval.high)}"


def _by(interval: Interval) -> str:
    return f"{format_number(interval.middle)} {UNIT} (95% {ends(interval)})"


def _list(words: Iterable[str], last: str = "and") -> str:
    *others, end = words
    return f"{', '.join(others)} {last} {end}" if others else end
