"""Every planted fault is found, and healthy models are clean. docs/xray-calibration.md has the measured values."""

import importlib.util
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

from normscope.diagnostics.findings import find
from tests.diagnostics import faults, healthy  # noqa: F401
from tests.diagnostics.cases import REGISTER, Fault, Healthy, largest_magnitude, mismatches, take_xray
from tests.diagnostics.ranks import ddp_cases, fsdp_cases

FAR_FROM_OVERFLOW = 1e12
"""Above this, overflow would depend on summation order, and so on the CPU."""

TABLE = Path(__file__).parents[2] / "docs" / "xray-calibration.md"


def _skip_without(package: str | None) -> None:
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.filterwarnings("ignore")  # torch and transformers warn about half precision
@pytest.mark.parametrize("case", REGISTER.faults, ids=lambda case: case.name)
def test_fault_is_found(case: Fault) -> None:
    _skip_without(case.needs)
    record = take_xray(case.make)
    assert mismatches(case, find(record)) == []
    assert largest_magnitude(record) < FAR_FROM_OVERFLOW


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("case", "seed"),
    [
        pytest.param(case, seed, id=f"{case.name}-{seed}", marks=pytest.mark.exhaustive if i or not case.quick else ())
        for case in REGISTER.healthy
        for i, seed in enumerate(case.seeds)
    ],
)
def test_healthy_model_is_clean(case: Healthy, seed: int) -> None:
    _skip_without(case.needs)
    record = take_xray(case.make, seed)
    found = [f"{f.severity} {f.name} in {f.module}: {f.title}" for f in find(record)]
    assert [text for text in found if not text.startswith("note")] == []
    assert largest_magnitude(record) < FAR_FROM_OVERFLOW


def test_every_finding_has_two_fault_cases() -> None:
    """Those of ranks are planted in processes of their own, in `ranks`."""
    planted = [case.finding for case in REGISTER.faults]
    planted += [case.finding for case in (*ddp_cases.CASES, *fsdp_cases.CASES) if case.finding]
    assert {name for name in planted if planted.count(name) < 2} == set()
    assert _names_in_source() == set(planted)


def _names_in_source() -> set[str]:
    """Names of all finding kinds in the source."""
    import normscope.diagnostics.findings as package
    from normscope.diagnostics.findings.finding import FindingKind

    modules = [import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__)]
    return {kind.name for module in modules for kind in vars(module).values() if isinstance(kind, FindingKind)}


def test_case_names_are_unique_and_numerous() -> None:
    assert len(REGISTER.faults) >= 40
    assert len(REGISTER.healthy) >= 40
    assert len({case.name for case in REGISTER.faults}) == len(REGISTER.faults)
    assert len({case.name for case in REGISTER.healthy}) == len(REGISTER.healthy)


def test_calibration_page_lists_every_case() -> None:
    table = TABLE.read_text(encoding="utf-8")
    names = [case.name for case in REGISTER.faults] + [case.name for case in REGISTER.healthy]
    missing = [name for name in names if f"| {name} |" not in table]
    assert missing == [], "fix: python examples/xray_calibration.py"
