"""What came out of a claim's study: every figure of every run, and the verdict. One JSON file each."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope._version import __version__
from normscope.errors import FileError
from normscope.files import is_altered, make_folder, signed, write_atomically
from normscope.lab.budget import Budget
from normscope.lab.claim import Settings
from normscope.lab.runs import Runs
from normscope.lab.statistics import Interval
from normscope.lab.trial import torch_version
from normscope.lab.verdict import Answer, Verdict

VERSION = 1
"""Of the file's format."""


@dataclass(frozen=True)
class Outcome:
    """A verdict and what it rests on.

    Args:
        claim: the name.
        verdict: on all of it.
        answers: to each of its questions.
        runs: all figures.
        settings: of each variant, with the learning rate that was found.
        tuned: what each variant gave with each learning rate that was tried.
        budget: the work that was put in.
        seconds: of one core.
        normscope, torch: versions.
    """

    claim: str
    verdict: Verdict
    answers: tuple[Answer, ...]
    runs: Runs
    settings: Mapping[str, Settings]
    tuned: Mapping[str, Mapping[float, float]]
    budget: Budget
    seconds: float
    normscope: str = __version__
    torch: str = dataclasses.field(default_factory=torch_version)


def outcome_path(folder: str | Path, claim: str) -> Path:
    return Path(folder) / "claims" / f"{claim}.json"


def save_outcome(folder: str | Path, outcome: Outcome) -> Path:
    path = outcome_path(folder, outcome.claim)
    make_folder(path.parent)
    content = {"version": VERSION, **dataclasses.asdict(outcome)}
    content["tuned"] = {name: list(losses.items()) for name, losses in outcome.tuned.items()}  # rates are no names
    write_atomically(path, json.dumps(signed(_finite(content)), indent=1) + "\n")
    return path


def load_outcome(folder: str | Path, claim: str) -> Outcome | None:
    """The outcome that was saved for a claim; None if there is none."""
    path = outcome_path(folder, claim)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {error}\nfix: normscope lab run {claim}") from error
    if is_altered(content) or content.get("version") != VERSION:
        raise FileError(f"{path} is damaged or of another version of normscope\nfix: normscope lab run {claim}")
    runs = content["runs"]
    return Outcome(
        claim=content["claim"],
        verdict=content["verdict"],
        answers=tuple(_answer(answer) for answer in content["answers"]),
        runs=Runs(runs["figures"], tuple(runs["seeds"]), runs["rates"]),
        settings=content["settings"],
        tuned={name: dict(map(tuple, pairs)) for name, pairs in content["tuned"].items()},
        budget=Budget(**content["budget"]),
        seconds=content["seconds"],
        normscope=content["normscope"],
        torch=content["torch"],
    )


def _answer(content: Mapping[str, Any]) -> Answer:
    ends = {name: float(value) for name, value in content["interval"].items()}
    return Answer(**{**content, "effects": tuple(content["effects"]), "interval": Interval(**ends)})


def _finite(value: Any) -> Any:
    """JSON has no infinity; the ends of an interval from one seed are written as texts, which float() reads."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
