"""Run trials and count the outcomes: `python -m tests.fuzz --seconds 300 --seed 1 --page docs/robustness.md`."""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import torch

from normscope.cli import COMMANDS
from tests.fuzz.arguments import argument_trial, call_trial
from tests.fuzz.environment import environment_trial
from tests.fuzz.kills import KillTrials
from tests.fuzz.readers import reader_trial
from tests.fuzz.report import report, table
from tests.fuzz.targets import Targets
from tests.fuzz.trial import BAD, Trial, run_trial
from tests.training.small_run import warm_up

GROUPS = ("files", "readers", "arguments", "calls", "environment", "kills")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="time budget; the last trial is finished")
    parser.add_argument("--trials", type=int, help="number of trials, instead of a time budget")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the trials")
    parser.add_argument("--only", choices=GROUPS, nargs="+", default=GROUPS, help="kinds of trials to run")
    parser.add_argument("--page", type=Path, help="write the counts to this file")
    parser.add_argument("--quick", action="store_true", help="only targets that are quick to build")
    parser.add_argument("--show", action="store_true", help="print every trial")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warm_up()
    # Once here, not again in each process that a trial forks. Drawing a model imports torch's compiler.
    for module in (*(module for module, _ in COMMANDS.values()), "tokenizers", "torch._dynamo"):
        import_module(module)
    with tempfile.TemporaryDirectory(prefix="normscope-fuzz-") as folder:
        counts, faults = _run_trials(options, Path(folder))
    print(table(counts))
    for fault in faults:
        print(f"\n{fault}")
    if options.page is not None:
        options.page.write_text(report(counts, options.seed))
        print(f"wrote {options.page}")
    return 1 if faults else 0


def _run_trials(options: argparse.Namespace, folder: Path) -> tuple[Counter[tuple[str, str]], list[str]]:
    trial_factories: dict[str, Callable[[random.Random], Trial]] = {
        "readers": reader_trial,
        "arguments": lambda rng: argument_trial(rng, folder),
        "calls": lambda rng: call_trial(rng, folder),
        "environment": lambda rng: environment_trial(rng, folder),
    }
    if "files" in options.only:
        trial_factories["files"] = Targets(folder, options.quick).trial
    if "kills" in options.only:
        trial_factories["kills"] = KillTrials(folder).trial
    counts: Counter[tuple[str, str]] = Counter()
    faults = []
    end, number = time.monotonic() + options.seconds, 0
    while number < options.trials if options.trials else time.monotonic() < end:
        rng = random.Random(f"{options.seed}-{number}")  # one seed per trial, so that it can be rerun alone
        trial = trial_factories[options.only[number % len(options.only)]](rng)
        outcome, result = run_trial(trial, folder / f"trial-{number}")
        counts[trial.kind, outcome] += 1
        if options.show or outcome in BAD:
            print(f"{outcome}: {trial.description}", file=sys.stderr, flush=True)
        if outcome in BAD:
            faults.append(
                f"{outcome}: {trial.kind}: {trial.description}\nexit code {result.code}\n{result.errors[-1500:]}"
            )
        number += 1
    return counts, faults


if __name__ == "__main__":
    sys.exit(main())
