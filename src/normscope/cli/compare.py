"""`normscope compare`: which of several models is better on your text, in the time that you have."""

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
from normscope.lab.budget import refuse_many_seeds
from normscope.lab.compare.estimate import check_time_budget
from normscope.lab.compare.page import comparison_page
from normscope.lab.compare.ranking import ranking, too_few_seeds
from normscope.lab.compare.study import AUTO_LRS, Comparison, ComparisonPlan, comparison, one_step, timing_trials
from normscope.lab.compare.summary import summarize
from normscope.lab.compare.table import heading, notices, table, timing
from normscope.lab.compare.time_budget import TimeBudgetError, measure_run_cost
from normscope.lab.compare.variants import check_buildable, combinations
from normscope.lab.report.terminal import paragraph
from normscope.lab.run_claims import WorkerConfig
from normscope.lab.scheduler import StudyObserver, TrialScheduler
from normscope.lab.store import Store
from normscope.lab.trial import LabTrial, TrialResult, function_path
from normscope.lab.trials.text_sources import STORIES, non_utf8_notice, store_text
from normscope.lab.workers import cores
from normscope.render.formatting import format_duration
from normscope.storage.files import make_folder, write_atomically

_LIST = tyro.conf.arg(metavar="A,B,...", help_behavior_hint="")
Listed = Annotated[str | None, _LIST]
AUTO = "auto"
_NUMBERS = ("depth", "width", "heads", "context")


@dataclass(frozen=True)
class Compare:
    """Train small GPTs on your text and say which is better, by how much, and how sure that is.

    Give several values, with commas between, to whatever is to be compared; every combination is tried, each with the
    learning rate that suits it. For instance:

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
    """How many blocks; 2 unless told otherwise."""

    width: Listed = None
    """The size of the residual stream; 48 unless told otherwise."""

    heads: Listed = None
    """4 unless told otherwise."""

    context: Listed = None
    """How many bytes the model sees at most; 64 unless told otherwise."""

    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = "llama"
    """What all of them start from: gpt2, nanochat or llama."""

    lr: Annotated[str, tyro.conf.arg(metavar="auto|X,...")] = "auto"
    """Learning rates to try for each; auto tries 0.001, 0.003, 0.01 and 0.03, then one more near or beyond the best."""

    data: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """The text to learn from; the built-in stories unless told otherwise."""

    minutes: Annotated[float, tyro.conf.arg(metavar="X")] = 10.0
    """How long it may take, about."""

    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 5
    """With how many seeds each is trained, at least 2."""

    workers: OptionalInt = None
    """How many are trained at once; one for each core unless told otherwise."""

    ray: Flag = False
    """Let Ray do it."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("comparison")
    """Where figures and the page go; the same command goes on where it was interrupted."""


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
    print(
        f"wrote {path}; it took {format_duration(time.monotonic() - start)} of {format_duration(60 * command.minutes)}"
    )
    return 0


def _plan(command: Compare) -> ComparisonPlan:
    check_positive_number(minutes=command.minutes)
    if command.seeds < 2:
        raise ConfigError(f"seeds={command.seeds}: one run says nothing of chance\nfix: --seeds 2 or more; 5 is usual")
    refuse_many_seeds(command.seeds)
    workers = cores() if command.workers is None else command.workers
    check_positive_int(workers=workers)
    names = ("norm", "wiring", "activation", "init", "positions", *_NUMBERS)
    given = {name: getattr(command, name) for name in names}
    choices = {name: _values(name, text) for name, text in given.items() if text is not None}
    base, lrs = {"preset": command.preset}, _rates(command.lr)
    variants = combinations(choices, base, STORIES)
    check_buildable(variants)  # before a folder is made
    plan = ComparisonPlan(variants, lrs, command.lr == AUTO, command.seeds, command.minutes, workers)
    check_time_budget(list(variants.values()), plan.stages, 60 * command.minutes, workers)
    make_folder(command.out)
    if command.data is None:
        return plan
    return replace(plan, variants=combinations(choices, base, store_text(command.data, Store(command.out).texts)))


def _values(name: str, text: str) -> list[Any]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError(f"--{name} needs a value or more")
    if name not in _NUMBERS:
        return words
    try:
        return [int(word) for word in words]
    except ValueError:
        raise ConfigError(f"--{name} {text!r} must be whole numbers with commas between") from None


def _rates(text: str) -> tuple[float, ...]:
    if text == AUTO:
        return AUTO_LRS
    try:
        lrs = tuple(sorted({float(word) for word in text.split(",")}))
    except ValueError:
        raise ConfigError(f"--lr {text!r} must be auto, or numbers with commas between") from None
    for lr in lrs:
        check_positive_number(lr=lr)
    return lrs


def _compare(command: Compare, plan: ComparisonPlan) -> Comparison:
    store = Store(command.out)
    workers = WorkerConfig(plan.workers, command.ray).gather(store.texts)
    try:
        with lab_progress({"comparison": plan.trials}, {"comparison": plan.work}) as watch:
            schedule: TrialScheduler[Comparison] = TrialScheduler(store, workers, _Planned(watch))
            found = schedule.run({"comparison": comparison(plan)})
    finally:
        workers.close()
    for error in schedule.errors.values():
        if isinstance(error, TimeBudgetError):  # the machine may have more time for it the next time
            for trial in timing_trials(plan):
                store.forget(trial)
        raise error
    return found["comparison"]


class _Planned:
    """Tells of what the plan counts: the runs, as the work of one step each, and not what is timed before them."""

    def __init__(self, watch: StudyObserver) -> None:
        self._watch = watch

    def trial_done(self, study: str, trial: LabTrial, done: TrialResult, cached: bool) -> None:
        if trial.measure != function_path(measure_run_cost):
            self._watch.trial_done(study, replace(trial, settings=one_step(trial.settings)), done, cached)

    def study_done(self, study: str, error: Exception | None) -> None:
        self._watch.study_done(study, error)
