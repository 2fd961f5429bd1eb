"""Caveats about all outcomes together, shown at the top of a report."""

from collections.abc import Iterator, Sequence

from normscope.lab.claim import Claim
from normscope.lab.results.outcome import Outcome
from normscope.render.formatting import format_number, pluralize

TOKENS_PER_PARAMETER = 20
"""The compute-optimal ratio of Hoffmann et al. 2022 for language models."""


def caveats(found: Sequence[tuple[Claim, Outcome]]) -> dict[str, str]:
    """Return paragraphs by heading."""
    claims = [claim for claim, _ in found]
    texts = {
        "Withdrawn": _withdrawn(claims),
        "Designs changed after a first run": _revised(claims),
        "Undertrained": _undertrained([outcome for _, outcome in found]),
    }
    return {heading: text for heading, text in texts.items() if text}


def _withdrawn(claims: Sequence[Claim]) -> str:
    numbers = [str(claim.number) for claim in claims if claim.withdrawn]
    if not numbers:
        return ""
    one = len(numbers) == 1
    return (
        f"The {'verdict' if one else 'verdicts'} on {'claim' if one else 'claims'} {_join(numbers)} "
        f"{'is' if one else 'are'} withdrawn until redone; the {'section says' if one else 'sections say'} why. The "
        "metrics are still shown, but no count of verdicts includes them."
    )


def _revised(claims: Sequence[Claim]) -> str:
    """A design that was changed after seeing results may be fitted to them, even with new seeds."""
    revised = [claim for claim in claims if claim.revised]
    if not revised:
        return ""
    changed = [f"{claim.number} (first {claim.first_verdict})" for claim in revised if claim.first_verdict]
    verdicts = f", and {pluralize(len(changed), 'verdict')} changed afterwards: {_join(changed)}"
    return (
        f"{len(revised)} of these {pluralize(len(claims), 'design')} {'was' if len(revised) == 1 else 'were'} changed "
        f"after a first run, with seeds 0 to 4, was inspected{verdicts if changed else ''}. The seeds of the verdicts "
        "had not been seen before, with few exceptions, but a design that was fitted to one set of seeds is not "
        "independent evidence. Each section says what was changed; docs/log.md has the details."
    )


def _undertrained(outcomes: Sequence[Outcome]) -> str:
    shares = [share for outcome in outcomes for share in bytes_per_parameter(outcome)]
    if not shares:
        return ""
    low, high = format_number(min(shares)), format_number(max(shares))
    return (
        f"The language models of these runs saw {low if low == high else f'{low} to {high}'} bytes per parameter; "
        f"about {TOKENS_PER_PARAMETER} tokens per parameter are usual. What holds in the first few hundred steps of a "
        "small model need not hold later, nor in a large one."
    )


def bytes_per_parameter(outcome: Outcome) -> Iterator[float]:
    """Yield the training bytes per parameter of every variant that trains on text."""
    for name, settings in outcome.settings.items():
        run = outcome.runs.metrics[name][0]
        context = settings.get("model", {}).get("context")
        if "text" in settings and context and "batch" in settings and {"steps", "parameters"} <= run.keys():
            yield run["steps"] * settings["batch"] * context / run["parameters"]


def _join(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), *items[-1:]] if len(items) > 1 else items)
