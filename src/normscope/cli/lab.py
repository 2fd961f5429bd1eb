"""`normscope lab`: test published claims about norms, initialization and residuals."""

import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from normscope.cli.options import (
    Flag,
    Folder,
    OptionalFile,
    OptionalFolder,
    OptionalInt,
    Quiet,
    Subcommands,
    given,
    run_subcommand,
)
from normscope.errors import FileError, NormscopeError
from normscope.lab.results.folders import DEFAULT_FOLDER, out_option, results_folder

if TYPE_CHECKING:
    from normscope.lab.claim import Claim
    from normscope.lab.results.outcome import Outcome

FAILED = 1


@dataclass(frozen=True)
class WorkerOptions:
    """Where to run, shared by `lab run` and `compare`."""

    data: OptionalFile = None
    """Text file to train on (default: the built-in stories)."""

    workers: OptionalInt = None
    """Number of parallel workers (default: one per core)."""

    ray: Flag = False
    """Run the workers on Ray, on the cluster at RAY_ADDRESS or on this machine."""

    quiet: Quiet = False
    """Show no notes and no progress."""


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

    out: Folder = DEFAULT_FOLDER
    """Output folder."""

    running: WorkerOptions = field(default_factory=WorkerOptions)


@dataclass(frozen=True)
class LabReport:
    """Write an HTML report: a table of verdicts, and a section for each claim."""

    out: Folder = DEFAULT_FOLDER
    """Output folder of `lab run`; the report is written there."""

    markdown: Flag = False
    """Also write README.md and its figures."""


@dataclass(frozen=True)
class LabList:
    """List the claims and their verdicts."""

    out: OptionalFolder = None
    """Output folder of `lab run` (default: lab, or docs/lab if lab has no results)."""

    json: Flag = False
    """Print a JSON array."""


def _list(command: LabList) -> None:
    from normscope.lab.report.terminal import format_claims

    folder = command.out or results_folder()
    found = _claims(folder)
    if command.json:
        print(json.dumps([_as_json(*one) for one in found], indent=1))
        return
    print(format_claims(found))
    if command.out is None:
        print(f"Verdicts from {folder}." if any(outcome for _, outcome in found) else f"No verdicts in {folder} yet.")


def _claims(folder: Path) -> "list[tuple[Claim, Outcome | FileError | None]]":
    """The claims with their results. A damaged one is reported, and does not hide the others."""
    from normscope.lab.commands import list_claims

    found = list_claims(folder)
    for _, outcome in found:
        if isinstance(outcome, FileError):
            print(f"note: skipping: {outcome}", file=sys.stderr)
    return found


def _as_json(claim: "Claim", outcome: "Outcome | FileError | None") -> dict[str, Any]:
    from normscope.lab.report.describe import ClaimReport
    from normscope.lab.results.outcome import Outcome, is_outdated

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
    from normscope.lab.commands import run_lab
    from normscope.lab.report.terminal import format_outcomes

    results = run_lab(**given(command))
    print(format_outcomes(results.by_claim))
    if results.outcomes:
        print(f"results: {command.out / 'claims'}")
        print(f"report:  normscope lab report{out_option(command.out)}")
    for name, error in results.errors.items():
        # Show the traceback of an internal error.
        where = "" if isinstance(error, NormscopeError) else "".join(traceback.format_exception(error))
        print(f"{where}error: {name}: {error}", file=sys.stderr)
    return FAILED if results.errors else 0


def _report(command: LabReport) -> None:
    from normscope.lab.commands import write_lab_report

    _claims(command.out)
    written, outdated = write_lab_report(command.out, markdown=command.markdown)
    for path in written:
        print(f"wrote {path}")
    if outdated:
        fix = f"normscope lab run {' '.join(outdated)}{out_option(command.out)}"
        print(f"note: these claims have changed since their results\nfix: {fix}", file=sys.stderr)


SUBCOMMANDS: Subcommands = {"list": (LabList, _list), "run": (LabRun, _run), "report": (LabReport, _report)}


def main(arguments: Sequence[str]) -> int:
    summary = "Test published claims about norms, initialization and residuals."
    return run_subcommand("lab", summary, SUBCOMMANDS, arguments or ["--help"])
