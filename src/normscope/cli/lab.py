"""`normscope lab`: test published claims about norms, initialization and residuals."""

import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from normscope.cli.lab_progress import lab_progress
from normscope.cli.options import Flag, OptionalInt, read_arguments
from normscope.errors import ConfigError, FileError, NormscopeError
from normscope.lab.budget import Budget, get_budget
from normscope.lab.catalog import all_claims, choose_claims
from normscope.lab.claim import Claim
from normscope.lab.report.describe import ClaimReport
from normscope.lab.report.terminal import format_claims, format_outcomes, paragraph
from normscope.lab.results.outcome import DEFAULT_FOLDER, Outcome, is_outdated, load_outcome, out_option
from normscope.lab.running.run_claims import run_claims, trial_count
from normscope.lab.running.time_estimates import claim_work
from normscope.lab.running.workers import WorkerConfig
from normscope.lab.trials.text_sources import non_utf8_notice
from normscope.render.formatting import pluralize
from normscope.storage.files import make_folder, write_atomically

FAILED = 1
_FOLDER = Annotated[Path, tyro.conf.arg(metavar="FOLDER")]


@dataclass(frozen=True)
class LabRun:
    """Test claims.

    Finished trials are kept: run the same command again to continue.

    Example: normscope lab run rmsnorm-vs-layernorm 15 --seeds 8
    """

    names: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")
    ] = ()
    """Names or numbers of claims (see `normscope lab list`)."""

    all: Flag = False
    """Test all claims."""

    budget: Literal["quick", "full"] = "quick"
    """quick: all claims in about 15 minutes on two cores; full: overnight."""

    seeds: OptionalInt = None
    """Number of seeds per variant (default: 5 for quick, 12 for full)."""

    workers: OptionalInt = None
    """Number of parallel workers (default: one per core)."""

    ray: Flag = False
    """Run the workers on Ray, on the cluster at RAY_ADDRESS or on this machine."""

    data: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Text file to train on (default: the built-in stories)."""

    out: _FOLDER = DEFAULT_FOLDER
    """Output folder."""


@dataclass(frozen=True)
class LabReport:
    """Write an HTML report: a table of verdicts, and a section for each claim."""

    out: _FOLDER = DEFAULT_FOLDER
    """Output folder of `lab run`; the report is written there."""

    markdown: Flag = False
    """Also write README.md and its figures."""


@dataclass(frozen=True)
class LabList:
    """List the claims and their verdicts."""

    out: _FOLDER = DEFAULT_FOLDER
    """Output folder of `lab run`."""

    json: Flag = False
    """Print a JSON array."""


_HELP = """\
Usage: normscope lab COMMAND [OPTIONS]

Test published claims about norms, initialization and residuals.

Commands:
  list    List the claims and their verdicts
  run     Test some or all claims
  report  Write an HTML report of all results

Use `normscope lab COMMAND --help` for the options of a command."""


def main(arguments: Sequence[str]) -> int:
    word, *rest = arguments or ["--help"]
    if word == "list":
        return _list(read_arguments(LabList, "lab list", rest))
    if word == "run":
        return _run(read_arguments(LabRun, "lab run", rest))
    if word == "report":
        return _report(read_arguments(LabReport, "lab report", rest))
    if word in ("-h", "--help", "help"):
        print(_HELP)
        return 0
    raise ConfigError(f"unrecognized subcommand {word!r}\nfix: use one of list, run, report")


def _list(command: LabList) -> int:
    found = _found(all_claims(), command.out)
    print(json.dumps([_as_json(*one) for one in found], indent=1) if command.json else format_claims(found))
    return 0


def _as_json(claim: Claim, outcome: Outcome | FileError | None) -> dict[str, Any]:
    known = outcome if isinstance(outcome, Outcome) else None
    return {
        "number": claim.number,
        "name": claim.name,
        "kind": claim.kind,
        "statement": claim.statement,
        "verdict": None if known is None else ClaimReport(claim, known).status,
        "budget": None if known is None else known.budget.name,
        "seeds": None if known is None else known.budget.seeds,
        "outdated": known is not None and is_outdated(known, claim),
        "damaged": isinstance(outcome, FileError),
    }


def _run(command: LabRun) -> int:
    if command.all == bool(command.names):
        raise ConfigError("name the claims to test, or use --all, but not both\nfix: normscope lab run --all")
    claims = list(all_claims()) if command.all else choose_claims(command.names)
    budget = get_budget(command.budget, command.seeds)
    worker_config = WorkerConfig(command.workers, command.ray)
    for note in _notes(command, claims, budget):
        print(paragraph(f"note: {note}"), file=sys.stderr)
    trials = {claim.name: trial_count(claim, budget) for claim in claims}
    with lab_progress(trials, {claim.name: claim_work(claim, budget) for claim in claims}) as watch:
        results = run_claims(claims, budget, command.out, watch, worker_config, command.data)
    # Only of this run: a claim that failed now may have an older result on disk.
    became = {outcome.claim: outcome for outcome in results.outcomes} | results.errors
    print(format_outcomes([(claim, became[claim.name]) for claim in claims]))
    if results.outcomes:
        print(f"results: {command.out / 'claims'}")
        print(f"report:  normscope lab report{out_option(command.out)}")
    for name, error in results.errors.items():
        # Show the traceback of an internal error.
        where = "" if isinstance(error, NormscopeError) else "".join(traceback.format_exception(error))
        print(f"{where}error: {name}: {error}", file=sys.stderr)
    return FAILED if results.errors else 0


def _notes(command: LabRun, claims: Sequence[Claim], budget: Budget) -> list[str]:
    """Notes to print before the run."""
    notes: list[str] = []
    if command.data is not None:
        notes += filter(None, [non_utf8_notice(command.data)])
        others = [claim.name for claim in claims if not _learns_from_text(claim, budget)]
        if others:
            notes.append(f"these claims do not train on text and ignore --data: {', '.join(others)}")
    known = [outcome for claim in claims if isinstance(outcome := _outcome(claim, command.out), Outcome)]
    more = [
        outcome
        for outcome in known
        if (outcome.budget.name == "full", outcome.budget.seeds) > (budget.name == "full", budget.seeds)
    ]
    if more:
        those = (f"{one.claim} ({one.budget.name}, {pluralize(one.budget.seeds, 'seed')})" for one in more)
        notes.append(f"this replaces results with a larger budget: {', '.join(those)}")
    return notes


def _learns_from_text(claim: Claim, budget: Budget) -> bool:
    return any("text" in settings for settings in claim.experiment.variants(budget).values())


def _report(command: LabReport) -> int:
    from normscope.lab.report.markdown import lab_markdown
    from normscope.lab.report.page import lab_page

    known = _found(all_claims(), command.out)
    found = [(claim, outcome) for claim, outcome in known if isinstance(outcome, Outcome)]
    if not found:
        fix = f"normscope lab run --all{out_option(command.out)}"
        raise ConfigError(f"no results in {command.out}\nfix: {fix}")
    path = command.out / "report.html"
    write_atomically(path, lab_page(found, command.out))
    print(f"wrote {path}")
    if command.markdown:
        for name, text in lab_markdown(found, command.out).items():
            make_folder((command.out / name).parent)
            write_atomically(command.out / name, text)
        print(f"wrote {command.out / 'README.md'}")
    older = " ".join(claim.name for claim, outcome in found if is_outdated(outcome, claim))
    if older:
        fix = f"normscope lab run {older}{out_option(command.out)}"
        print(f"note: these claims have changed since their results\nfix: {fix}", file=sys.stderr)
    return 0


def _found(claims: Sequence[Claim], folder: Path) -> list[tuple[Claim, Outcome | FileError | None]]:
    """Load the result of each claim. A damaged one is reported, and does not hide the others."""
    found = [(claim, _outcome(claim, folder)) for claim in claims]
    for _, outcome in found:
        if isinstance(outcome, FileError):
            print(f"note: skipping: {outcome}", file=sys.stderr)
    return found


def _outcome(claim: Claim, folder: Path) -> Outcome | FileError | None:
    try:
        return load_outcome(folder, claim.name)
    except FileError as error:
        return error
