"""What the x-ray finds in the corpus does not get worse."""

import pytest

from tests.diagnostics.corpus.measure import measure
from tests.diagnostics.corpus.register import Half, Kind, cases


@pytest.mark.parametrize("half", ["tuning", "held_out"])
def test_every_kind_of_case_is_there(half: Half) -> None:
    found = list(cases(half))
    assert len({(case.family, case.name) for case in found}) == len(found)
    counts = {kind: sum(case.kind == kind for case in found) for kind in ("plain", "hard", "ordinary", "tricky")}
    assert counts["plain"] >= 90
    assert counts["hard"] >= 20
    assert counts["ordinary"] >= 55
    assert counts["tricky"] >= 17


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("half", "plain", "hard"), [("tuning", 98, 22), ("held_out", 83, 17)])
def test_faults_are_found_in_the_right_module_and_healthy_loops_are_clean(half: Half, plain: int, hard: int) -> None:
    results = [measure(case) for case in cases(half)]

    def good(kind: Kind) -> list[bool]:
        return [result.is_good for result in results if result.case.kind == kind]

    assert [result.describe() for result in results if not result.case.cause and not result.is_good] == []
    assert sum(good("plain")) >= plain
    assert sum(good("hard")) >= hard
    placed = [result.is_placed for result in results if result.case.cause and result.is_good]
    assert sum(placed) >= 0.95 * len(placed)
