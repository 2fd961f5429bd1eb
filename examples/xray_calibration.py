"""Measure how well the x-ray separates faults from healthy models; writes docs/xray-calibration.md.

python examples/xray_calibration.py
"""

import sys
import warnings
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))  # for the cases in tests/diagnostics

from tests.diagnostics import faults, healthy  # noqa: E402, F401
from tests.diagnostics.cases import REGISTER, Fault, Healthy, mismatches, take_xray  # noqa: E402
from tests.diagnostics.margins import MEASURES, Measure  # noqa: E402

from normscope.diagnostics.findings import find  # noqa: E402
from normscope.storage.files import write_atomically  # noqa: E402

PAGE = HERE / "docs" / "xray-calibration.md"

TEXT = """# X-ray calibration

Every check runs on models with one planted fault each and on healthy models, at initialization and after some training.
`python examples/xray_calibration.py` regenerates this page; `tests/diagnostics/test_calibration.py` tests it.

A fault counts as found if its finding is reported for its module, if no other warning or error is reported except for
kinds that the case declares as consequences (a layer with dead units leaves earlier layers without a gradient), and if
it comes first among those of its severity. A healthy model may have notes, but no warnings or errors, for any seed.
Findings about the ranks of torch.distributed are planted in processes of their own, by `tests/diagnostics/ranks`.

{found} of {faults} faults were found; {clean} of {healthy} healthy models ({runs} runs) are clean.

## Margins

For each threshold: the value closest to it among all healthy models, and among the faults of its kind. "Margin" is the
factor by which the healthy value could move before it counts as a fault. A finding with two rows needs both thresholds,
or either of two. Outlier features are a note, which good models may have.

| finding | value | healthy | threshold | faults | margin |
|---|---|---|---|---|---|
{margin_rows}

Other findings are yes or no, and have no threshold.

## Faults

| fault | finding | module | title | result |
|---|---|---|---|---|
{fault_rows}

## Healthy models

The value closest to its threshold over all checks and seeds.

| model | seeds | closest value | threshold | notes | result |
|---|---|---|---|---|---|
{healthy_rows}
"""


def main() -> None:
    warnings.simplefilter("ignore")  # torch and transformers warn about half precision and the like
    torch.set_num_threads(1)
    beyond: dict[int, list[float]] = {i: [] for i in range(len(MEASURES))}
    within: dict[int, list[float]] = {i: [] for i in range(len(MEASURES))}
    fault_rows = [_fault_row(case, beyond) for case in REGISTER.faults]
    healthy_rows = [_healthy_row(case, within) for case in REGISTER.healthy]
    margins = [_margin_row(measure, within[i], beyond[i]) for i, measure in enumerate(MEASURES)]
    found = sum(row.endswith("| found |") for row in fault_rows)
    clean = sum(row.endswith("| clean |") for row in healthy_rows)
    text = TEXT.format(
        found=found,
        faults=len(fault_rows),
        clean=clean,
        healthy=len(healthy_rows),
        runs=sum(len(case.seeds) for case in REGISTER.healthy),
        margin_rows="\n".join(margins),
        fault_rows="\n".join(fault_rows),
        healthy_rows="\n".join(healthy_rows),
    )
    write_atomically(PAGE, text)
    print(f"{found}/{len(fault_rows)} faults found, {clean}/{len(healthy_rows)} healthy models clean: {PAGE}")


def _fault_row(case: Fault, beyond: dict[int, list[float]]) -> str:
    found = find(take_xray(case.make))
    wrong = mismatches(case, found)
    own = [finding for finding in found if finding.name == case.finding and finding.module == case.module]
    for i, measure in enumerate(MEASURES):
        value = measure.worst_of(own)
        if value is not None and measure.nearness(value) >= 1:  # otherwise another value led to the finding
            beyond[i].append(value)
    print(f"{'found ' if not wrong else 'MISSED'} {case.name}", flush=True)
    says = own[0].title if own else "; ".join(wrong)
    place = f"`{case.module}`" if case.module else "the model"
    return f"| {case.name} | {case.finding} | {place} | {_cell(says)} | {'found' if not wrong else 'missed'} |"


def _healthy_row(case: Healthy, within: dict[int, list[float]]) -> str:
    nearest, notes, clean = (0.0, "", ""), 0, True
    for seed in case.seeds:
        record = take_xray(case.make, seed)
        found = find(record)
        notes += sum(finding.severity == "note" for finding in found)
        clean = clean and all(finding.severity == "note" for finding in found)
        for i, measure in enumerate(MEASURES):
            value = measure.worst(record)
            if value is not None:
                within[i].append(value)
                figure = f"{measure.finding}: {measure.figure} {value:.3g}"
                nearest = max(nearest, (measure.nearness(value), figure, _limit(measure, value)))
    print(f"{'clean ' if clean else 'FAILED'} {case.name}", flush=True)
    _, figure, limit = nearest
    return f"| {case.name} | {len(case.seeds)} | {figure} | {limit} | {notes} | {'clean' if clean else 'failed'} |"


def _margin_row(measure: Measure, within: list[float], beyond: list[float]) -> str:
    closest_healthy = max(within, key=measure.nearness, default=None)
    closest_fault = min(beyond, key=measure.nearness, default=None)
    margin = (
        f"{1 / measure.nearness(closest_healthy):.3g}" if closest_healthy and measure.nearness(closest_healthy) else ""
    )
    cells = [f"{value:.3g}" if value is not None else "" for value in (closest_healthy, closest_fault)]
    limit = _limit(measure, 1.0 if closest_healthy is None else closest_healthy)
    return f"| {measure.finding} | {measure.figure} | {cells[0]} | {limit} | {cells[1]} | {margin} |"


def _limit(measure: Measure, value: float) -> str:
    """The threshold on the value's side."""
    return f"{1 / measure.limit if measure.two_sided and value < 1 else measure.limit:.3g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
