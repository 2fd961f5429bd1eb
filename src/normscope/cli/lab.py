"""`normscope lab`: the field's claims, put to the test."""

import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from normscope.cli.lab_progress import lab_progress
from normscope.cli.options import Flag, OptionalInt, read_arguments
from normscope.errors import ConfigError, FileError, NormscopeError
from normscope.lab.budget import Budget, get_budget
from normscope.lab.catalog import all_claims, choose_claims
from normscope.lab.claim import Claim
from normscope.lab.outcome import DEFAULT_FOLDER, Outcome, is_outdated, load_outcome, out_option
from normscope.lab.report.terminal import format_claims, format_outcomes, paragraph
from normscope.lab.run_claims import WorkerConfig, run_claims
from normscope.lab.study import trial_count
from normscope.lab.time_left import claim_work
from normscope.lab.trials.text_sources import non_utf8_notice
from normscope.render.formatting import pluralize
from normscope.storage.files import make_folder, write_atomically

FAILED = 1
_FOLDER = Annotated[Path, tyro.conf.arg(metavar="FOLDER")]


@dataclass(frozen=True)
class LabRun:
    """Put claims to the test.

    What is finished is kept: the same command goes on where it was interrupted.

    For instance: normscope lab run rmsnorm-vs-layernorm 15 --seeds 8
    """

    names: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")
    ] = ()
    """Names or numbers of claims; `normscope lab list` has them."""

    all: Flag = False
    """All of them."""

    budget: Literal["quick", "full"] = "quick"
    """quick: all claims in a quarter of an hour on two cores; full: a night."""

    seeds: OptionalInt = None
    """With how many seeds each variant is run; 5 for quick and 12 for full unless told otherwise."""

    workers: OptionalInt = None
    """How many trials run at once; one for each core unless told otherwise."""

    ray: Flag = False
    """Let Ray run them, on the cluster of RAY_ADDRESS or on this machine."""

    text: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """A text to learn from, in the place of the built-in stories."""

    out: _FOLDER = DEFAULT_FOLDER
    """Where figures and outcomes are kept."""


@dataclass(frozen=True)
class LabReport:
    """Make one page of all outcomes: a table of verdicts, and a section for each."""

    out: _FOLDER = DEFAULT_FOLDER
    """The folder that `lab run` kept its outcomes in; the page goes there too."""

    markdown: Flag = False
    """Write README.md and its figures as well."""


@dataclass(frozen=True)
class LabList:
    """List the claims, and the verdicts that are known."""

    out: _FOLDER = DEFAULT_FOLDER
    """The folder that `lab run` kept its outcomes in."""


_HELP = """\
usage: normscope lab list | run | report ...

The field's claims about norms, initialisation and residuals, put to the test.

  list    the claims, and the verdicts that are known
  run     run some or all of them: normscope lab run --all
  report  make one page of all outcomes

`normscope lab run --help` tells the options."""


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
    raise ConfigError(f"lab has no {word!r}\nfix: one of list, run, report")


def _list(command: LabList) -> int:
    print(format_claims(_found(all_claims(), command.out)))
    return 0


def _run(command: LabRun) -> int:
    if command.all == bool(command.names):
        raise ConfigError("which claims?\nfix: name some, as `normscope lab list` has them, or say --all, not both")
    claims = list(all_claims()) if command.all else choose_claims(command.names)
    budget = get_budget(command.budget, command.seeds)
    hands = WorkerConfig(command.workers, command.ray)
    for note in _notes(command, claims, budget):
        print(paragraph(f"note: {note}"), file=sys.stderr)
    trials = {claim.name: trial_count(claim, budget) for claim in claims}
    with lab_progress(trials, {claim.name: claim_work(claim, budget) for claim in claims}) as watch:
        results = run_claims(claims, budget, command.out, watch, hands, command.text)
    # Of this run alone: a claim that failed now may have a verdict of before on the disk.
    became = {outcome.claim: outcome for outcome in results.outcomes} | results.errors
    print(format_outcomes([(claim, became[claim.name]) for claim in claims]))
    if results.outcomes:
        print(f"every figure is in {command.out / 'claims'}")
        print(f"for a page of it: normscope lab report{out_option(command.out)}")
    for name, error in results.errors.items():
        # A fault of ours is told with the place that it comes from.
        where = "" if isinstance(error, NormscopeError) else "".join(traceback.format_exception(error))
        print(f"{where}error: {name}: {error}", file=sys.stderr)
    return FAILED if results.errors else 0


def _notes(command: LabRun, claims: Sequence[Claim], budget: Budget) -> list[str]:
    """What is to be known before it begins."""
    notes: list[str] = []
    if command.text is not None:
        notes += filter(None, [non_utf8_notice(command.text)])
        others = [claim.name for claim in claims if not _learns_from_text(claim, budget)]
        if others:
            notes.append(f"learning from no text, and so not from {command.text} either: {', '.join(others)}")
    known = [outcome for claim in claims if isinstance(outcome := _outcome(claim, command.out), Outcome)]
    more = [
        outcome
        for outcome in known
        if (outcome.budget.name == "full", outcome.budget.seeds) > (budget.name == "full", budget.seeds)
    ]
    if more:
        those = (f"{one.claim} ({one.budget.name}, {pluralize(one.budget.seeds, 'seed')})" for one in more)
        notes.append(f"this replaces results that had more work put in: {', '.join(those)}")
    return notes


def _learns_from_text(claim: Claim, budget: Budget) -> bool:
    return any("text" in settings for settings in claim.variants(budget).values())


def _report(command: LabReport) -> int:
    from normscope.lab.report.markdown import lab_markdown
    from normscope.lab.report.page import lab_page

    known = _found(all_claims(), command.out)
    found = [(claim, outcome) for claim, outcome in known if isinstance(outcome, Outcome)]
    if not found:
        fix = f"normscope lab run --all{out_option(command.out)}"
        raise ConfigError(f"there is no outcome in {command.out}\nfix: {fix}")
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
        print(f"note: these claims have changed since\nfix: {fix}", file=sys.stderr)
    return 0


def _found(claims: Sequence[Claim], folder: Path) -> list[tuple[Claim, Outcome | FileError | None]]:
    """What is there of each claim. An outcome that is damaged is told of, and keeps nobody from the others."""
    found = [(claim, _outcome(claim, folder)) for claim in claims]
    for _, outcome in found:
        if isinstance(outcome, FileError):
            print(f"note: left out: {outcome}", file=sys.stderr)
    return found


def _outcome(claim: Claim, folder: Path) -> Outcome | FileError | None:
    try:
        return load_outcome(folder, claim.name)
    except FileError as error:
        return error
