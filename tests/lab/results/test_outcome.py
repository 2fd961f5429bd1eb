"""Outcomes: save and load, damaged files, outdated results."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from normscope.errors import FileError
from normscope.lab.claim import LRTuning
from normscope.lab.results.folders import outcome_path
from normscope.lab.results.outcome import is_outdated, load_outcome, save_outcome
from normscope.storage.files import with_checksum
from tests.lab.made import VARIANTS, made_claim, made_outcome, questions


def test_saved_outcome_is_equal_and_not_outdated(tmp_path: Path) -> None:
    outcome = made_outcome()
    save_outcome(tmp_path, outcome)
    found = load_outcome(tmp_path, outcome.claim)
    assert found is not None
    assert found.answers == outcome.answers
    assert found.rule == outcome.rule
    assert not is_outdated(outcome, made_claim())
    assert not is_outdated(found, made_claim())  # tuples have become lists


def changed(**changes: Any) -> Any:
    """The questions with the first one changed."""
    return lambda budget: [dataclasses.replace(questions(budget)[0], **changes), questions(budget)[1]]


@pytest.mark.parametrize(
    "changes",
    [
        {"rule": "Supported if the moon is full."},
        {"questions": changed(text="another")},
        {"questions": changed(threshold=0.2)},
        {"questions": changed(side="above")},
        {"questions": changed(every_seed=True)},
        {"questions": lambda budget: questions(budget)[:1]},
        {"variants": lambda budget: {**VARIANTS, "rms": {**VARIANTS["rms"], "steps": 200}}},
        {"variants": lambda budget: {name.upper(): settings for name, settings in VARIANTS.items()}},
        {"tuning": lambda budget: LRTuning((0.001, 0.003))},
        {"tuning": lambda budget: LRTuning((0.001, 0.003, 0.01), shared=lambda name: "layer")},
        {"tuning": None},
    ],
)
def test_changed_experiment_makes_an_outcome_outdated(changes: dict[str, Any]) -> None:
    assert is_outdated(made_outcome(), made_claim(**changes))


def test_changed_texts_do_not_make_an_outcome_outdated() -> None:
    assert not is_outdated(made_outcome(), made_claim(statement="in other words", remark="more", number=7))


def test_other_data_or_tuned_lr_does_not_make_an_outcome_outdated() -> None:
    text = {"name": "my.txt", "sha256": "0" * 64}
    settings = {name: {**one, "text": text, "lr": 0.5} for name, one in made_outcome().settings.items()}
    assert not is_outdated(made_outcome(settings=settings), made_claim())
    assert is_outdated(made_outcome(settings=settings), made_claim(tuning=None))


def test_questions_of_another_budget_do_not_matter() -> None:
    by_budget = made_claim(
        variants=lambda budget: {name: {**one, "steps": 100 * budget.seeds // 4} for name, one in VARIANTS.items()}
    )
    assert not is_outdated(made_outcome(), by_budget)


@pytest.mark.parametrize(
    "text", ["[]", "null", '{"version": 1}', '"supported"', "{", "3", '{"version": 1, "runs": []}']
)
def test_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    path = outcome_path(tmp_path, "made-up")
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(FileError, match=r"made-up\.json(.|\n)*fix: normscope lab run made-up"):
        load_outcome(tmp_path, "made-up")


@pytest.mark.parametrize(
    "damage",
    [{"verdict": "perhaps"}, {"claim": "another"}, {"answers": [{}]}, {"budget": {"name": "quick", "seeds": 0}}],
)
def test_file_with_other_content_is_refused(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = save_outcome(tmp_path, made_outcome())
    content = {**json.loads(path.read_text()), **damage}
    del content["checksum"]
    path.write_text(json.dumps(with_checksum(content)))
    with pytest.raises(FileError, match=r"is damaged or from another version|is not valid"):
        load_outcome(tmp_path, "made-up")


@pytest.mark.parametrize("missing", ["rule", "tuned"])
def test_file_with_missing_fields_is_refused(tmp_path: Path, missing: str) -> None:
    path = save_outcome(tmp_path, made_outcome())
    content = json.loads(path.read_text())
    del content["checksum"], content[missing]
    path.write_text(json.dumps(with_checksum(content)))
    with pytest.raises(FileError, match=r"is damaged or from another version|is not valid"):
        load_outcome(tmp_path, "made-up")
