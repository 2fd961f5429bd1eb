"""The texts of findings: complete templates, filled with evidence and values."""

import pkgutil
from importlib import import_module

import pytest

import normscope.diagnostics.findings as package
from normscope.diagnostics.findings.finding import CHECKS, FindingKind

TOPICS = [import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__)]


def test_every_check_of_every_topic_is_registered_once() -> None:
    registered = [check for checks in CHECKS.values() for check in checks]
    written = [value for topic in TOPICS for name, value in vars(topic).items() if name.startswith("check_")]
    assert len(registered) == len(set(registered)) == len(written)
    assert set(registered) == set(written)


def test_every_kind_has_a_title_an_explanation_and_a_fix() -> None:
    kinds = [value for topic in TOPICS for value in vars(topic).values() if isinstance(value, FindingKind)]
    assert len(kinds) >= 40
    for kind in kinds:
        title, why, fix = kind._templates
        assert kind.name.replace("-", "").isalnum()
        assert min(map(len, (title, why, fix))) > 4


def test_numbers_are_formatted_and_unknown_evidence_is_omitted() -> None:
    kind = FindingKind("""
    large-thing: {module} has {a / b} of {count} ({a / b:%}, {exact:.5f})
    why: {reason}
    fix: change {module}:{code}
    """)
    found = kind.found_in(
        "", {"a / b": 0.123456, "count": 12345, "b": None}, reason="So.", exact=1.0, code="\n    x = 1"
    )
    assert found.title == "the model has 0.123 of 12345 (12.3%, 1.00000)"
    assert (found.name, found.severity, found.module) == ("large-thing", "warning", "")
    assert found.evidence == {"a / b": 0.123456, "count": 12345}
    assert found.fix == "change the model:\n    x = 1"
    with pytest.raises(KeyError, match="reason"):
        kind.found_in("", found.evidence, exact=1.0, code="")
