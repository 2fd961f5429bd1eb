"""`normscope compare`: find out which model variant is better on your text."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from normscope.checks import check_positive_int, check_positive_number
from normscope.cli.lab_progress import lab_progress
from normscope.cli.options import Flag, OptionalInt, read_arguments
from normscope.errors import ConfigError
from normscope.lab.budget import check_max_seeds
from normscope.lab.compare.comparison import AUTO_LRS, Comparison, ComparisonPlan, comparison, one_step, timing_trials
from normscope.lab.compare.page import comparison_page
from normscope.lab.compare.ranking import ranking, too_few_seeds
from normscope.lab.compare.summary import summarize
from normscope.lab.compare.table import heading, notices, table, timing
from normscope.lab.compare.variants import check_buildable, combinations
from normscope.lab.report.terminal import paragraph
from normscope.lab.running.scheduler import StudyObserver, TrialScheduler
from normscope.lab.running.store import Store
from normscope.lab.running.time_estimates import TimeBudgetError, check_time_budget, measure_run_cost
from normscope.lab.running.trial import LabTrial, TrialResult, function_path
from normscope.lab.running.workers import WorkerConfig, cores
from normscope.lab.trials.text_sources import STORIES, non_utf8_notice, store_text
from normscope.render.formatting import format_duration
from normscope.storage.files import make_folder, write_atomically

_LIST = tyro.conf.arg(metavar="A,B,...", help_behavior_hint="")
Listed = Annotated[str | None, _LIST]
AUTO = "auto"
_NUMBERS = ("depth", "width", "heads", "context")


@dataclass(frozen=True)
class Compare:
    """Train small GPT variants on your text, and report which is better, by how much, and with what confidence.

    Give comma-separated values to the options to compare; every combination is trained, each with its best learning
    rate. Example:

      normscope compare --norm rms,layer --wiring pre,post --data my.txt --minutes 10
    """

    norm: Listed = None
    """rms, layer, rms-plain, group, instance, batch, power, none, or a scope such as "... [d]"."""

    wiring: Listed = None
    """pre, post, sandwich, parallel, single, none."""

    activation: Listed = None
    """relu2, relu, gelu, silu, swiglu, reglu, geglu."""

    init: Listed = None
    """glorot-truncated, glorot-corrected, gpt2, nanochat."""

    positions: Listed = None
    """learned, rotary, none."""

    depth: Listed = None
    """Number of blocks (default: 2)."""

    width: Listed = None
    """Embedding width (default: 48)."""

    heads: Listed = None
    """Number of attention heads (default: 4)."""

    context: Listed = None
    """Context length in bytes (default: 64)."""

    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = "llama"
    """Preset that all variants are based on: gpt2, nanochat or llama."""

    lr: Annotated[str, tyro.conf.arg(metavar="auto|X,...")] = "auto"
    """Learning rates to try; auto tries 0.001, 0.003, 0.01 and 0.03, then one more near or beyond the best."""

    data: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Text file to train on (default: the built-in stories)."""

    minutes: Annotated[float, tyro.conf.arg(metavar="X")] = 10.0
    """Approximate time budget in minutes."""

    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 5
    """Number of seeds per variant, at least 2."""

    workers: OptionalInt = None
    """Number of parallel workers (default: one per core)."""

    ray: Flag = False
    """Run the workers on Ray."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("comparison")
    """Output folder. Run the same command again to continue an interrupted comparison."""


def main(arguments: Sequence[str]) -> int:
    start = time.monotonic()
    command = read_arguments(Compare, "compare", arguments)
    plan = _plan(command)
    no_text = None if command.data is None else non_utf8_notice(command.data)
    for warning in (too_few_seeds(len(plan.variants), plan.seeds), no_text):
        if warning is not None:
            print(paragraph(f"note: {warning}"), file=sys.stderr)
    found = _compare(command, plan)
    ranked = ranking(found.runs)
    print(f"{paragraph(heading(found))}\n\n{table(found, ranked)}\n\n{paragraph(summarize(ranked))}")
    print(paragraph(f"note: {timing(found)}"))
    for notice in notices(found, ranked):
        print(paragraph(f"note: {notice}"))
    path = command.out / "report.html"
    write_atomically(path, comparison_page(found))
    print(f"wrote {path}; took {format_duration(time.monotonic() - start)} of {format_duration(60 * command.minutes)}")
    return 0


def _plan(command: Compare) -> ComparisonPlan:
    check_positive_number(minutes=command.minutes)
    if command.seeds < 2:
        raise ConfigError(f"seeds={command.seeds}: a single seed gives no confidence interval\nfix: --seeds 5")
    check_max_seeds(command.seeds)
    workers = cores() if command.workers is None else command.workers
    check_positive_int(workers=workers)
    names = ("norm", "wiring", "activation", "init", "positions", *_NUMBERS)
    given = {name: getattr(command, name) for name in names}
    choices = {name: _values(name, text) for name, text in given.items() if text is not None}
    base, lrs = {"preset": command.preset}, _learning_rates(command.lr)
    variants = combinations(choices, base, STORIES)
    check_buildable(variants)  # before creating the folder
    plan = ComparisonPlan(variants, lrs, command.lr == AUTO, command.seeds, command.minutes, workers)
    check_time_budget(list(variants.values()), plan.stages, 60 * command.minutes, workers)
    make_folder(command.out)
    if command.data is None:
        return plan
    return replace(plan, variants=combinations(choices, base, store_text(command.data, Store(command.out).texts)))


def _values(name: str, text: str) -> list[Any]:
    values = [value.strip() for value in text.split(",") if value.strip()]
    if not values:
        raise ConfigError(f"a value is required for --{name}")
    if name not in _NUMBERS:
        return values
    try:
        return [int(value) for value in values]
    except ValueError:
        raise ConfigError(f"invalid value {text!r} for --{name}: expected comma-separated integers") from None


def _learning_rates(text: str) -> tuple[float, ...]:
    if text == AUTO:
        return AUTO_LRS
    try:
        lrs = tuple(sorted({float(word) for word in text.split(",")}))
    except ValueError:
        raise ConfigError(f"invalid value {text!r} for --lr: expected auto or comma-separated numbers") from None
    for lr in lrs:
        check_positive_number(lr=lr)
    return lrs


def _compare(command: Compare, plan: ComparisonPlan) -> Comparison:
    store = Store(command.out)
    workers = WorkerConfig(plan.workers, command.ray).start(store.texts)
    try:
        with lab_progress({"comparison": plan.trials}, {"comparison": plan.work}) as watch:
            schedule: TrialScheduler[Comparison] = TrialScheduler(store, workers, _PlannedProgress(watch))
            found = schedule.run({"comparison": comparison(plan)})
    finally:
        workers.close()
    for error in schedule.errors.values():
        if isinstance(error, TimeBudgetError):  # the machine may be less busy next time
            for trial in timing_trials(plan):
                store.delete(trial)
        raise error
    return found["comparison"]


class _PlannedProgress:
    """Report only the planned runs, each as the work of one step, not the timing trials before them."""

    def __init__(self, watch: StudyObserver) -> None:
        self._watch = watch

    def trial_done(self, study: str, trial: LabTrial, done: TrialResult, cached: bool) -> None:
        if trial.measure != function_path(measure_run_cost):
            self._watch.trial_done(study, replace(trial, settings=one_step(trial.settings)), done, cached)

    def study_done(self, study: str, error: Exception | None) -> None:
        self._watch.study_done(study, error)
