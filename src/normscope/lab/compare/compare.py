"""Compare model variants on a text: the function behind `normscope compare`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from normscope.checks import as_path, check_flags, check_positive_int, check_positive_number, is_integer, short_repr
from normscope.errors import ConfigError
from normscope.lab.claim import check_max_seeds
from normscope.lab.compare import comparison as study
from normscope.lab.compare.comparison import Comparison, ComparisonPlan, one_step
from normscope.lab.compare.ranking import ranking, summarize, too_few_seeds
from normscope.lab.compare.report import comparison_page, heading, notices, table, timing
from normscope.lab.progress import lab_progress
from normscope.lab.report.terminal import paragraph
from normscope.lab.running.scheduler import StudyObserver, run_studies
from normscope.lab.running.time_estimates import TimeBudgetError, check_time_budget, measure_run_cost
from normscope.lab.running.trial import LabTrial, Store, TrialResult, function_path
from normscope.lab.running.workers import check_workers, default_workers
from normscope.lab.trials.text_sources import non_utf8_notice, store_text
from normscope.storage.files import make_folder, write_atomically


@dataclass(frozen=True)
class ComparisonResult:
    """A comparison and its report.

    Args:
        comparison: All runs, by variant.
        report: The HTML page that was written.
    """

    comparison: Comparison
    report: Path

    def __str__(self) -> str:
        """The table, what it says, and notes."""
        found, ranked = self.comparison, ranking(self.comparison.runs)
        notes = [timing(found), *notices(found, ranked)]
        text = f"{paragraph(heading(found))}\n\n{table(found, ranked)}\n\n{paragraph(summarize(ranked))}"
        return "\n".join([text, *(paragraph(f"note: {note}") for note in notes)])


def compare(
    *,
    preset: str = "llama",
    lr: Literal["auto"] | Sequence[float] = "auto",
    data: str | Path | None = None,
    minutes: float = 10.0,
    seeds: int = 5,
    workers: int | None = None,
    ray: bool = False,
    out: str | Path = "comparison",
    quiet: bool = False,
    **choices: Sequence[Any],
) -> ComparisonResult:
    """Train small GPT variants on a text, and find out which is better, like `normscope compare`.

    Args:
        preset: Preset that all variants are based on.
        lr: Learning rates to try; "auto" tries four, then one more near or beyond the best.
        data: Text file to train on; None for the built-in stories.
        minutes: Approximate time budget.
        seeds: Number of seeds per variant, at least 2.
        workers: Number of parallel workers; None for one per core.
        ray: Run the workers on Ray.
        out: Output folder. The same call continues an interrupted comparison.
        quiet: Show no notes and no progress.
        choices: Values to compare of norm, wiring, activation, init, positions, depth, width, heads and context; every
            combination is trained.
    """
    text, folder = None if data is None else as_path(data, "a text"), as_path(out, "a comparison")
    check_flags(ray=ray, quiet=quiet)
    plan = _plan(choices, preset, lr, minutes, seeds, workers, ray)
    make_folder(folder)
    if text is not None:
        stored = store_text(text, Store(folder).texts)
        plan = replace(plan, variants={name: {**one, "text": stored} for name, one in plan.variants.items()})
    no_text = None if text is None else non_utf8_notice(text)
    for warning in (too_few_seeds(len(plan.variants), plan.seeds), no_text):
        if warning is not None and not quiet:
            print(paragraph(f"note: {warning}"), file=sys.stderr)
    found = _run(plan, folder, ray, quiet)
    report = folder / "report.html"
    write_atomically(report, comparison_page(found))
    return ComparisonResult(found, report)


def _plan(
    choices: dict[str, Sequence[Any]], preset: str, lr: Any, minutes: float, seeds: int, workers: int | None, ray: bool
) -> ComparisonPlan:
    check_positive_number(minutes=minutes)
    if not is_integer(seeds):
        check_positive_int(seeds=seeds)  # raises; a number that is too large has its own error below
    auto = isinstance(lr, str) and lr == "auto"
    for name, values in {**choices, **({} if auto else {"lr": lr})}.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise ConfigError(
                f"{name}={short_repr(values)} must be a list of values\nfix: {name}=[{short_repr(values)}]"
            )
    if seeds < 2:
        raise ConfigError(f"seeds={seeds}: a single seed gives no confidence interval\nfix: --seeds 5")
    check_max_seeds(seeds)
    for one in () if auto else lr:
        check_positive_number(lr=one)
    lrs = study.AUTO_LRS if auto else tuple(sorted({*map(float, lr)}))
    check_workers(workers)
    variants = study.combinations(choices, preset)
    study.check_buildable(variants)  # before creating the folder
    plan = ComparisonPlan(variants, lrs, auto, seeds, minutes, default_workers(ray) if workers is None else workers)
    check_time_budget(list(variants.values()), plan.stages, 60 * minutes, plan.workers)
    return plan


def _run(plan: ComparisonPlan, folder: Path, ray: bool, quiet: bool) -> Comparison:
    store = Store(folder)
    with lab_progress({"comparison": plan.work}, quiet) as watch:
        studies = {"comparison": study.comparison(plan)}
        found, errors = run_studies(store, studies, _PlannedProgress(watch), plan.workers, ray)
    for error in errors.values():
        if isinstance(error, TimeBudgetError):  # the machine may be less busy next time
            for trial in study.timing_trials(plan):
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

    def machine_lost(self, machine: str) -> None:
        self._watch.machine_lost(machine)
