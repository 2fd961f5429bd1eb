"""Measure the findings on a half of the corpus: `python -m tests.diagnostics.corpus tuning [FAMILY|NAME ...]`."""

import sys
import warnings
from collections import defaultdict

from tests.diagnostics.corpus.measure import Result, measure
from tests.diagnostics.corpus.register import cases


def main(half: str, *chosen: str) -> None:
    assert half in ("tuning", "held_out"), half
    warnings.simplefilter("ignore")
    by_family: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for case in cases(half):  # type: ignore[arg-type]
        if chosen and not {case.family, case.name, case.kind}.intersection(chosen):
            continue
        result = measure(case)
        by_family[case.family, case.kind].append(result)
        if half == "tuning":
            print(result.describe(), flush=True)
    total: dict[str, list[Result]] = defaultdict(list)
    for (family, kind), results in sorted(by_family.items()):
        total[kind] += results
        print(f"{family:24} {kind:8} {sum(result.is_good for result in results):3} of {len(results):3}")
    for kind, results in sorted(total.items()):
        found = [result for result in results if result.is_good]
        placed = sum(result.is_placed for result in found)
        print(f"{'all':24} {kind:8} {len(found):3} of {len(results):3}, right module {placed} of {len(found)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
