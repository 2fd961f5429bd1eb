"""The tab "Lab": claims, verdicts and figures; run a claim and watch."""

from collections.abc import Iterator

import msgspec

from normscope.errors import ConfigError, FileError
from normscope.lab.claim import Claim
from normscope.lab.commands import list_claims
from normscope.lab.report.describe import ClaimReport, format_interval
from normscope.lab.results.outcome import Outcome
from normscope.render.chart import draw_chart
from normscope.studio.endpoints import Endpoint, Name, NoArguments
from normscope.studio.jobs import Job, watch
from normscope.studio.state import StudioState

_KIND = "lab"


class ClaimRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A claim, by its name."""

    name: Name


class RunClaimRequest(ClaimRequest, forbid_unknown_fields=True):
    """A claim to test."""

    seeds: int | None = None


def claims(studio: StudioState, request: NoArguments) -> list[dict[str, object]]:
    """All claims with their verdicts."""
    return [_summary(studio, claim, outcome) for claim, outcome in list_claims(studio.lab)]


def claim(studio: StudioState, request: ClaimRequest) -> dict[str, object]:
    """One claim in full: texts, answers and figures."""
    found, outcome = _find(studio, request.name)
    summary = _summary(studio, found, outcome)
    texts = {"source": found.source, "design": found.design, "rule": found.rule}
    if not isinstance(outcome, Outcome):
        return {**summary, **texts, "answers": [], "charts": [], "paragraphs": [], "facts": ""}
    report = ClaimReport(found, outcome)
    return {
        **summary,
        **texts,
        "facts": report.facts,
        "paragraphs": report.paragraphs,
        "answers": [
            {"question": one.text, "interval": format_interval(one.interval, one.unit), "verdict": one.verdict}
            for one in outcome.answers
        ],
        "charts": [draw_chart(chart) for chart in report.charts],
    }


def run(studio: StudioState, request: RunClaimRequest) -> dict[str, object]:
    """Test a claim in the background."""
    found, _ = _find(studio, request.name)
    seeds = [] if request.seeds is None else ["--seeds", str(request.seeds)]
    job = studio.jobs.start(_KIND, found.name, ["lab", "run", found.name, "--out", str(studio.lab), *seeds])
    return {"job": job.number}


def stop(studio: StudioState, request: ClaimRequest) -> dict[str, object]:
    """Stop testing a claim; finished trials are kept."""
    _job(studio, request.name).stop()
    return {}


def follow(studio: StudioState, request: ClaimRequest) -> Iterator[dict[str, object]]:
    """What a running test prints, until it ends."""
    return watch(_job(studio, request.name))


def _job(studio: StudioState, name: str) -> Job:
    job = studio.jobs.find(_KIND, name)
    if job is None:
        raise ConfigError(f"{name} is not running")
    return job


def _find(studio: StudioState, name: str) -> tuple[Claim, Outcome | FileError | None]:
    for one, outcome in list_claims(studio.lab):
        if one.name == name:
            return one, outcome
    raise ConfigError(f"there is no claim {name!r}\nfix: choose one of the list")


def _summary(studio: StudioState, claim: Claim, outcome: Outcome | FileError | None) -> dict[str, object]:
    known = ClaimReport(claim, outcome) if isinstance(outcome, Outcome) else None
    job = studio.jobs.find(_KIND, claim.name)
    return {
        "number": claim.number,
        "name": claim.name,
        "kind": claim.kind,
        "statement": claim.statement,
        "status": None if known is None else known.status,
        "verdict": None if known is None else known.verdict,
        "outdated": known is not None and known.outdated,
        "damaged": str(outcome) if isinstance(outcome, FileError) else None,
        "running": job is not None and job.status == "running",
    }


ENDPOINTS: dict[str, Endpoint] = {
    "lab": claims,
    "lab/claim": claim,
    "lab/run": run,
    "lab/stop": stop,
    "lab/follow": follow,
}
