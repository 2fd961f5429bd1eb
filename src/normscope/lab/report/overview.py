"""The parts of a report that cover all outcomes: caveats, how verdicts are reached, and the commands that were run."""

import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from normscope.lab.catalog import read_texts
from normscope.lab.claim import Claim, get_budget
from normscope.lab.results.folders import out_option
from normscope.lab.results.outcome import Outcome
from normscope.lab.results.verdict import CONFIDENCE
from normscope.lab.running.run_claims import FIRST_SEED
from normscope.lab.running.tuning import FIRST_TUNING_SEED
from normscope.lab.trials.text_sources import STORIES
from normscope.render.formatting import format_number, join_words, pluralize

TOKENS_PER_PARAMETER = 20
"""The compute-optimal ratio of Hoffmann et al. 2022 for language models."""
METHOD: dict[str, str] = read_texts(
    Path(__file__).with_name("method.toml"),
    {"CONFIDENCE": CONFIDENCE, "FIRST_SEED": FIRST_SEED, "FIRST_TUNING_SEED": FIRST_TUNING_SEED},
)
"""How verdicts are reached: paragraphs by heading."""


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
        f"The {'verdict' if one else 'verdicts'} on {'claim' if one else 'claims'} {join_words(numbers)} "
        f"{'is' if one else 'are'} withdrawn until redone; the {'section says' if one else 'sections say'} why. The "
        "metrics are still shown, but no count of verdicts includes them."
    )


def _revised(claims: Sequence[Claim]) -> str:
    """A design that was changed after seeing results may be fitted to them, even with new seeds."""
    revised = [claim for claim in claims if claim.revised]
    if not revised:
        return ""
    changed = [f"{claim.number} (first {claim.first_verdict})" for claim in revised if claim.first_verdict]
    verdicts = f", and {pluralize(len(changed), 'verdict')} changed afterwards: {join_words(changed)}"
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


def commands(outcomes: Sequence[Outcome], every: Collection[str], folder: Path) -> list[str]:
    """Return the commands that reproduce these outcomes, grouped by budget and text.

    Args:
        outcomes: in the order of the claims.
        every: names of all claims.
        folder: of the outcomes.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        groups.setdefault((_budget(outcome), _text(outcome, outcomes)), []).append(outcome.claim)
    return [
        f"normscope lab run {'--all' if set(names) == set(every) else ' '.join(names)}{budget}{text}"
        f"{out_option(folder)}"
        for (budget, text), names in groups.items()
    ]


def _budget(outcome: Outcome) -> str:
    default = get_budget(outcome.budget.name)
    name = "" if default.name == "quick" else f" --budget {default.name}"
    return name if outcome.budget.seeds == default.seeds else f"{name} --seeds {outcome.budget.seeds}"


def _text(outcome: Outcome, others: Sequence[Outcome]) -> str:
    """The --data option. A claim without text joins the command of those with one."""
    texts = _texts(outcome) or set().union(*map(_texts, others))
    if len(texts) != 1:
        return ""
    (name,) = texts
    return f" --data {shlex.quote(name)}" if name else ""


def _texts(outcome: Outcome) -> set[str]:
    """Names of the outcome's texts; empty for the built-in stories."""
    texts = [settings["text"] for settings in outcome.settings.values() if "text" in settings]
    return {"" if text == STORIES else str(text["name"]) for text in texts}
