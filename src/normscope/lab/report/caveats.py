"""What a reader has to know of all outcomes together before relying on any of them; it stands at the top."""

from collections.abc import Iterator, Sequence

from normscope.lab.claim import Claim
from normscope.lab.outcome import Outcome
from normscope.render.formatting import format_number, pluralize

ENOUGH = 20
"""Tokens a parameter, which Hoffmann et al. 2022 found to be the best use of compute for a language model."""


def caveats(found: Sequence[tuple[Claim, Outcome]]) -> dict[str, str]:
    """Paragraphs by what they are about."""
    claims = [claim for claim, _ in found]
    said = {
        "Withdrawn": _withdrawn(claims),
        "Designs changed after a first run": _revised(claims),
        "Barely trained": _barely_trained([outcome for _, outcome in found]),
    }
    return {about: words for about, words in said.items() if words}


def _withdrawn(claims: Sequence[Claim]) -> str:
    numbers = [str(claim.number) for claim in claims if claim.withdrawn]
    if not numbers:
        return ""
    one = len(numbers) == 1
    return (
        f"The {'verdict' if one else 'verdicts'} on {'claim' if one else 'claims'} {_listed(numbers)} "
        f"{'is' if one else 'are'} withdrawn until redone; the {'section says' if one else 'sections say'} why. The "
        "figures are still shown, and no count of verdicts includes them."
    )


def _revised(claims: Sequence[Claim]) -> str:
    """Whoever changes a design after a look at results may fit it to them, with other seeds too."""
    revised = [claim for claim in claims if claim.revised]
    if not revised:
        return ""
    changed = [f"{claim.number} (then {claim.first_verdict})" for claim in revised if claim.first_verdict]
    verdicts = f", and {pluralize(len(changed), 'verdict')} came out otherwise afterwards: {_listed(changed)}"
    return (
        f"{len(revised)} of these {pluralize(len(claims), 'design')} {'was' if len(revised) == 1 else 'were'} changed "
        f"after a first run, with seeds 0 to 4, had been looked at{verdicts if changed else ''}. The seeds that judge "
        "now had not been seen before, with few exceptions, but a design that was fitted to one set of seeds is no "
        "independent evidence. Each section says what was changed; docs/log.md has all of it."
    )


def _barely_trained(outcomes: Sequence[Outcome]) -> str:
    shares = [share for outcome in outcomes for share in bytes_a_parameter(outcome)]
    if not shares:
        return ""
    least, most = format_number(min(shares)), format_number(max(shares))
    return (
        f"The models that learn from text saw {least if least == most else f'{least} to {most}'} bytes of it for each "
        f"of their parameters, by the records of these runs; about {ENOUGH} tokens for each are usual. What holds in "
        "the first few hundred steps of a small model need not hold later, nor in a large one."
    )


def bytes_a_parameter(outcome: Outcome) -> Iterator[float]:
    """Of every variant that learns from text: bytes that it was trained on, for each of its parameters."""
    for name, settings in outcome.settings.items():
        run = outcome.runs.metrics[name][0]
        context = settings.get("model", {}).get("context")
        if "text" in settings and context and "batch" in settings and {"steps", "parameters"} <= run.keys():
            yield run["steps"] * settings["batch"] * context / run["parameters"]


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), *words[-1:]] if len(words) > 1 else words)
