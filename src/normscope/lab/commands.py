"""The lab as functions: list claims, run them, and write the report of their results."""

import builtins
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from normscope.checks import as_path, check_flags, short_repr
from normscope.errors import ConfigError, FileError
from normscope.lab.catalog import all_claims, choose_claims
from normscope.lab.claim import Budget, Claim, get_budget
from normscope.lab.progress import lab_progress, work_of
from normscope.lab.report.terminal import paragraph
from normscope.lab.results.folders import DEFAULT_FOLDER, out_option, results_folder
from normscope.lab.results.outcome import Outcome, is_outdated, load_outcome
from normscope.lab.running.run_claims import ClaimResults, claim_trials, run_claims
from normscope.lab.running.workers import check_workers
from normscope.lab.trials.text_sources import non_utf8_notice
from normscope.render.formatting import pluralize
from normscope.storage.files import make_folder, write_atomically


def list_claims(out: str | Path | None = None) -> list[tuple[Claim, Outcome | FileError | None]]:
    """All claims, each with its result; None if it has none, an error if it is damaged.

    Args:
        out: Output folder of `run_lab`; None for lab, or docs/lab if lab has no results.
    """
    folder = results_folder() if out is None else as_path(out, "a lab folder")
    return [(claim, _outcome(claim, folder)) for claim in all_claims()]


def run_lab(
    names: str | Sequence[str] = (),
    *,
    all: bool = False,
    budget: Literal["quick", "full"] = "quick",
    seeds: int | None = None,
    workers: int | None = None,
    ray: bool = False,
    data: str | Path | None = None,
    out: str | Path = DEFAULT_FOLDER,
    quiet: bool = False,
) -> ClaimResults:
    """Test claims, like `normscope lab run`. Finished trials are kept: the same call continues an interrupted run.

    Args:
        names: Names or numbers of claims, see `list_claims`.
        all: Test all claims.
        budget: "quick" or "full".
        seeds: Number of seeds per variant; None for the budget's.
        workers: Number of parallel workers; None for one per core.
        ray: Run the workers on Ray.
        data: Text file to train on; None for the built-in stories.
        out: Output folder.
        quiet: Show no notes and no progress.
    """
    check_flags(all=all, ray=ray, quiet=quiet)
    wanted = [names] if isinstance(names, str) else names
    if not isinstance(wanted, Sequence) or not builtins.all(isinstance(name, str) for name in wanted):
        raise ConfigError(f'names={short_repr(names)} must be names of claims\nfix: names=["norm-speed", "17"]')
    if all == bool(wanted):
        raise ConfigError("name the claims to test, or use --all, but not both\nfix: normscope lab run --all")
    claims = list(all_claims()) if all else choose_claims(wanted)
    chosen = get_budget(budget, seeds)
    check_workers(workers)
    text, folder = None if data is None else as_path(data, "a text"), as_path(out, "a lab folder")
    for note in () if quiet else _notes(claims, chosen, text, folder):
        print(paragraph(f"note: {note}"), file=sys.stderr)
    work = {claim.name: [work_of(settings) for settings in claim_trials(claim, chosen)] for claim in claims}
    with lab_progress(work, quiet) as watch:
        return run_claims(claims, chosen, folder, watch, workers=workers, ray=ray, text=text)


def write_lab_report(out: str | Path = DEFAULT_FOLDER, *, markdown: bool = False) -> tuple[list[Path], list[str]]:
    """Write the report of all results, like `normscope lab report`.

    Args:
        out: Output folder of `run_lab`; the report is written there.
        markdown: Also write README.md and its figures.

    Returns:
        The pages that were written, and the names of claims that changed since their results.
    """
    from normscope.lab.report.page import lab_markdown, lab_page

    folder = as_path(out, "a lab folder")
    found = [(claim, outcome) for claim, outcome in list_claims(folder) if isinstance(outcome, Outcome)]
    if not found:
        raise ConfigError(f"no results in {folder}\nfix: normscope lab run --all{out_option(folder)}")
    pages = {"report.html": lab_page(found, folder)} | (lab_markdown(found, folder) if markdown else {})
    for name, text in pages.items():
        make_folder((folder / name).parent)
        write_atomically(folder / name, text)
    written = [folder / name for name in ("report.html", "README.md") if name in pages]
    return written, [claim.name for claim, outcome in found if is_outdated(outcome, claim)]


def _notes(claims: Sequence[Claim], budget: Budget, data: Path | None, folder: Path) -> list[str]:
    """Notes to print before the run."""
    notes: list[str] = []
    if data is not None:
        notes += filter(None, [non_utf8_notice(data)])
        settings = {claim.name: claim.experiment.variants(budget).values() for claim in claims}
        others = [name for name, variants in settings.items() if not any("text" in one for one in variants)]
        if others:
            notes.append(f"these claims do not train on text and ignore --data: {', '.join(others)}")
    known = {claim.name: outcome.budget for claim in claims if isinstance(outcome := _outcome(claim, folder), Outcome)}
    more = [
        f"{name} ({old.name}, {pluralize(old.seeds, 'seed')})"
        for name, old in known.items()
        if (old.name == "full", old.seeds) > (budget.name == "full", budget.seeds)
    ]
    if more:
        notes.append(f"this replaces results with a larger budget: {', '.join(more)}")
    return notes


def _outcome(claim: Claim, folder: Path) -> Outcome | FileError | None:
    try:
        return load_outcome(folder, claim.name)
    except FileError as error:
        return error
