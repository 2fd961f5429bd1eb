"""The result of a claim's study: the metrics of every run, and the verdict, as one JSON file."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope._version import __version__
from normscope.diagnostics.record_json import to_json
from normscope.errors import FileError
from normscope.lab.claim import Budget, Claim, Settings
from normscope.lab.results.folders import out_option, outcome_path
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.results.verdict import Answer, Question, Verdict
from normscope.lab.running.code_version import versions
from normscope.lab.running.tuning import tuned_variants
from normscope.storage.files import make_folder, with_checksum, write_atomically
from normscope.storage.json_files import LARGE_FILE_BYTES, JsonSource, read_json

VERSION = 2
"""Version of the file format."""


@dataclass(frozen=True)
class Outcome:
    """A verdict and its evidence.

    Args:
        claim: name of the claim.
        verdict: on the whole claim.
        answers: one per question.
        runs: all metrics.
        settings: of each variant, with its tuned learning rate.
        tuned: loss of each variant by learning rate, from tuning.
        budget: of the run.
        seconds: CPU time of one core.
        rule: the decision rule, as it was before the run.
        normscope, torch: versions.
    """

    claim: str
    verdict: Verdict
    answers: tuple[Answer, ...]
    runs: VariantRuns
    settings: Mapping[str, Settings]
    tuned: Mapping[str, Mapping[float, float]]
    budget: Budget
    seconds: float
    rule: str
    normscope: str = __version__
    torch: str = dataclasses.field(default_factory=lambda: versions()["torch"])


def save_outcome(folder: str | Path, outcome: Outcome) -> Path:
    path = outcome_path(folder, outcome.claim)
    make_folder(path.parent)
    content = {"version": VERSION, **dataclasses.asdict(outcome)}
    content["tuned"] = {name: list(losses.items()) for name, losses in outcome.tuned.items()}  # JSON keys are strings
    finite = to_json(content)  # intervals from one seed are infinite
    write_atomically(path, json.dumps(with_checksum(finite), indent=1) + "\n")
    return path


def load_outcome(folder: str | Path, claim: str) -> Outcome | None:
    """Load the outcome of a claim; None if there is none."""
    path, fix = outcome_path(folder, claim), f"normscope lab run {claim}{out_option(folder)}"
    if not path.exists():
        return None
    content = read_json(path, dict[str, Any], fix=fix, max_bytes=LARGE_FILE_BYTES, checksum=True)
    damaged = FileError(f"{path} is damaged or from another version of normscope\nfix: {fix}")
    if content.pop("version", None) != VERSION or content.get("claim") != claim:
        raise damaged
    try:
        content["tuned"] = {name: dict(map(tuple, pairs)) for name, pairs in content["tuned"].items()}
        for answer in content["answers"]:
            answer["interval"] = {name: float(value) for name, value in answer["interval"].items()}
    except (LookupError, TypeError, ValueError, AttributeError):
        raise damaged from None
    return JsonSource(path, fix).convert(content, Outcome)


def is_outdated(outcome: Outcome, claim: Claim) -> bool:
    """Whether the claim has changed since the run: its rule, questions, variants or learning rates."""
    experiment, budget = claim.experiment, outcome.budget
    variants, tuning = experiment.variants(budget), experiment.tuning and experiment.tuning(budget)
    lrs = {name: list(tuning.lrs) for name in tuned_variants(list(variants), tuning)} if tuning else {}
    tried = {name: sorted(losses) for name, losses in outcome.tuned.items()}
    now = claim.rule, _asked(experiment.questions(budget)), _compared(variants, bool(tuning)), lrs
    return now != (outcome.rule, _asked(outcome.answers), _compared(outcome.settings, bool(tuning)), tried)


def _asked(questions: Sequence[Question | Answer]) -> list[tuple[Any, ...]]:
    return [(one.text, one.threshold, one.side, one.unit, one.every_seed) for one in questions]


def _compared(variants: Mapping[str, Settings], tuned: bool) -> Any:
    """Settings as JSON values, without what depends on the run: the tuned learning rate and the text."""
    own = {
        name: {key: "" if key == "text" else value for key, value in settings.items() if not (tuned and key == "lr")}
        for name, settings in variants.items()
    }
    return json.loads(json.dumps(own))
