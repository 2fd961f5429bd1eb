"""The result of a comparison in a few sentences."""

from collections.abc import Iterable, Sequence

from normscope.lab.compare.ranking import Ranked, RankedPair, Ranking
from normscope.lab.report.describe import format_range
from normscope.lab.results.statistics import Interval
from normscope.render.formatting import format_number, pluralize

UNIT = "nats per byte"


def summarize(found: Ranking) -> str:
    """Summarize a ranking.

    >>> best, other = Ranked("rms", Interval(2.0, 1.9, 2.1), 0, 5), Ranked("layer", Interval(2.1, 2.0, 2.2), 0, 5)
    >>> summarize(Ranking([best, other], {("rms", "layer"): RankedPair(Interval(0.1, 0.05, 0.15), None, 5)}))
    'With this budget rms is better than layer by 0.100 nats per byte (95% 0.0500 to 0.150).'
    >>> summarize(Ranking([best, other], {("rms", "layer"): RankedPair(Interval(0.01, -0.02, 0.04), None, 5)}))
    'No difference found between rms and layer: 0.0100 nats per byte (95% -0.0200 to 0.0400).'
    """
    trained = [one for one in found.ranked if not one.all_failed]
    failed = [one.name for one in found.ranked if one.all_failed]
    seeds = pluralize(found.best.seeds, "seed")
    if not trained:
        none = f"Neither {_join(failed, 'nor')}" if len(failed) == 2 else f"None of {_join(failed)}"
        return f"{none} learned anything: no better than a uniform guess with any of {seeds}."
    parts = _among(found, trained) if len(trained) > 1 else [f"Only {found.best.name} learned anything."]
    if failed:
        verb = "was" if len(failed) == 1 else "were"
        parts.append(f"{_join(failed)} {verb} no better than a uniform guess with any of {seeds}.")
    return " ".join(parts)


def _among(found: Ranking, trained: Sequence[Ranked]) -> list[str]:
    """Compare the variants that trained with at least one seed."""
    best, similar, worse, unsure = trained[0], [], [], []
    for one in trained[1:]:
        if found.pairs[best.name, one.name].differs:
            worse.append(one)
        elif best.failed or one.failed:
            unsure.append(one)
        else:
            similar.append(one)
    parts = _similar(found, [one.name for one in similar])
    if worse:
        first = _by(found.pairs[best.name, worse[0].name].behind)
        parts.append(f"With this budget {best.name} is better than {worse[0].name} by {first}.")
    if len(worse) > 1:
        parts.append(f"It is also better than {_join(one.name for one in worse[1:])}.")
    failed = [f"{one.name} failed with {one.failed} of {one.seeds} seeds" for one in trained if one.failed]
    if failed:
        parts.append(f"{_join(failed)}: no better than a uniform guess.")
    return parts + [_where_trained(best.name, one.name, found.pairs[best.name, one.name]) for one in unsure]


def _similar(found: Ranking, names: Sequence[str]) -> list[str]:
    """Describe the variants that do not differ from the best; two of them may still differ from each other."""
    best = found.best.name
    if not names:
        return []
    if len(names) == 1:
        return [f"No difference found between {best} and {names[0]}: {_by(found.pairs[best, names[0]].behind)}."]
    among = [(pair, one) for pair, one in found.pairs.items() if set(pair) <= set(names) and one.differs]
    if not among:
        return [f"No difference found between {_join([best, *names])}."]
    (better, other), pair = max(among, key=lambda one: one[1].behind.middle)
    text = (
        f"{best} does not differ from {_join(names, 'or')}, but {better} is better than {other} by {_by(pair.behind)}"
    )
    return [f"{text}." if len(among) == 1 else f"{text}; {pluralize(len(among) - 1, 'more pair')} of these differ too."]


def _where_trained(best: str, other: str, pair: RankedPair) -> str:
    """Compare two variants over the seeds with which both trained: a failed seed widens the interval over all."""
    seeds = pluralize(pair.trained, "seed")
    if pair.where_trained is None:
        return f"Both {best} and {other} trained with only {seeds}, too few to compare them."
    found = pair.where_trained
    start = f"Over the {seeds} with which both {best} and {other} trained"
    if found.low > 0:
        return f"{start}, {best} is better by {_by(found)}."
    if found.high < 0:
        return f"{start}, {other} is better by {_by(Interval(-found.middle, -found.high, -found.low))}."
    return f"{start}, no difference found: {_by(found)}."


def _by(interval: Interval) -> str:
    return f"{format_number(interval.middle)} {UNIT} (95% {format_range(interval)})"


def _join(words: Iterable[str], last: str = "and") -> str:
    *others, end = words
    return f"{', '.join(others)} {last} {end}" if others else end
