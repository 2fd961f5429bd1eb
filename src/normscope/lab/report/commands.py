"""The commands that reproduce outcomes."""

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from normscope.lab.budget import get_budget
from normscope.lab.results.outcome import Outcome, out_option
from normscope.lab.trials.text_sources import STORIES


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
    """The --text option. A claim without text joins the command of those with one."""
    texts = _texts(outcome) or set().union(*map(_texts, others))
    if len(texts) != 1:
        return ""
    (name,) = texts
    return f" --data {shlex.quote(name)}" if name else ""


def _texts(outcome: Outcome) -> set[str]:
    """Names of the outcome's texts; empty for the built-in stories."""
    texts = [settings["text"] for settings in outcome.settings.values() if "text" in settings]
    return {"" if text == STORIES else str(text["name"]) for text in texts}
