"""Run the studies of several claims in parallel."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim
from normscope.lab.outcome import Outcome, save_outcome
from normscope.lab.scheduler import Study, StudyObserver, TrialScheduler
from normscope.lab.store import Store
from normscope.lab.study import study
from normscope.lab.trials.text_sources import store_text
from normscope.lab.workers import ProcessWorkers, RayWorkers, Workers


@dataclass(frozen=True)
class WorkerConfig:
    """How trials are run.

    Args:
        count: number of workers; None for one per core.
        ray: use Ray.
    """

    count: int | None = None
    ray: bool = False

    def start(self, texts: Path) -> Workers:
        return RayWorkers(self.count, texts) if self.ray else ProcessWorkers(self.count, texts)


@dataclass(frozen=True)
class ClaimResults:
    """Outcomes in the order of the claims, and errors by claim name."""

    outcomes: list[Outcome]
    errors: dict[str, Exception]


def run_claims(
    claims: Sequence[Claim],
    budget: Budget,
    folder: str | Path,
    observer: StudyObserver,
    workers: WorkerConfig,
    text: Path | None = None,
) -> ClaimResults:
    """Test claims. Finished trials are stored in the folder, so that the same call resumes from there.

    Args:
        claims: which ones.
        budget: how much work.
        folder: for metrics and outcomes.
        observer: receives progress.
        workers: how trials are run.
        text: a file to train on instead of the built-in stories.
    """
    store = Store(folder)
    stored = None if text is None else store_text(text, store.texts)

    def saved(claim: Claim) -> Study[Outcome]:
        outcome = yield from study(claim, budget, stored)
        save_outcome(folder, outcome)
        return outcome

    pool = workers.start(store.texts)
    try:
        scheduler: TrialScheduler[Outcome] = TrialScheduler(store, pool, observer)
        found = scheduler.run({claim.name: saved(claim) for claim in claims})
    finally:
        pool.close()
    return ClaimResults(list(found.values()), scheduler.errors)
