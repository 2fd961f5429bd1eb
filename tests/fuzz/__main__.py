"""Run trials and count what came of them: `python -m tests.fuzz --seconds 300 --seed 1 --page docs/robustness.md`."""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tests.fuzz.arguments import argument_trial, call_trial
from tests.fuzz.environment import environment_trial
from tests.fuzz.kills import Kills
from tests.fuzz.page import page, table
from tests.fuzz.subjects import Bench
from tests.fuzz.trial import BAD, Trial, attempt
from tests.training.small_run import warm_up

GROUPS = ("files", "arguments", "calls", "environment", "kills")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long; the trial that has begun is finished")
    parser.add_argument("--trials", type=int, help="how many trials, instead")
    parser.add_argument("--seed", type=int, default=0, help="of the trials: the same seed gives the same ones")
    parser.add_argument("--only", choices=GROUPS, nargs="+", default=GROUPS, help="these kinds")
    parser.add_argument("--page", type=Path, help="write the counts to this file")
    parser.add_argument("--quick", action="store_true", help="damage only what takes little time to make")
    parser.add_argument("--show", action="store_true", help="print every trial")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warm_up()
    with tempfile.TemporaryDirectory(prefix="normscope-fuzz-") as folder:
        counts, faults = _try(given, Path(folder))
    print(table(counts))
    for fault in faults:
        print(f"\n{fault}")
    if given.page is not None:
        given.page.write_text(page(counts, given.seed))
        print(f"wrote {given.page}")
    return 1 if faults else 0


def _try(given: argparse.Namespace, folder: Path) -> tuple[Counter[tuple[str, str]], list[str]]:
    bench = Bench(folder, given.quick)
    makers: dict[str, Callable[[random.Random], Trial]] = {
        "files": bench.trial,
        "arguments": lambda rng: argument_trial(rng, folder),
        "calls": lambda rng: call_trial(rng, folder),
        "environment": lambda rng: environment_trial(rng, folder),
    }
    if "kills" in given.only:
        makers["kills"] = Kills(folder).trial
    counts: Counter[tuple[str, str]] = Counter()
    faults = []
    end, number = time.monotonic() + given.seconds, 0
    while number < given.trials if given.trials else time.monotonic() < end:
        rng = random.Random(f"{given.seed}-{number}")  # each trial by itself, so that it can be done again alone
        trial = makers[given.only[number % len(given.only)]](rng)
        outcome, ended = attempt(trial, folder / f"trial-{number}")
        counts[trial.kind, outcome] += 1
        if given.show or outcome in BAD:
            print(f"{outcome}: {trial.words}", file=sys.stderr, flush=True)
        if outcome in BAD:
            faults.append(f"{outcome}: {trial.kind}: {trial.words}\nexit code {ended.code}\n{ended.errors[-1500:]}")
        number += 1
    return counts, faults


if __name__ == "__main__":
    sys.exit(main())
