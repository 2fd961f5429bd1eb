"""Claims in, verdicts out: the studies of all of them, run by as many hands as there are."""

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
from normscope.lab.workers import Processes, RayWorkers, Workers


@dataclass(frozen=True)
class WorkerConfig:
    """Who does the work.

    Args:
        count: how many at once; None is one for each core.
        ray: whether they are Ray's.
    """

    count: int | None = None
    ray: bool = False

    def gather(self, texts: Path) -> Workers:
        return RayWorkers(self.count, texts) if self.ray else Processes(self.count, texts)


@dataclass(frozen=True)
class ClaimResults:
    """What became of the claims: outcomes in the order in which they were asked for, and errors by name."""

    outcomes: list[Outcome]
    errors: dict[str, Exception]


def run_claims(
    claims: Sequence[Claim],
    budget: Budget,
    folder: str | Path,
    watch: StudyObserver,
    hands: WorkerConfig,
    text: Path | None = None,
) -> ClaimResults:
    """Put claims to the test. Whatever is finished is kept in the folder, so that the same call goes on from there.

    Args:
        claims: which ones.
        budget: with how much work.
        folder: where figures and outcomes are kept.
        watch: who is told how it goes.
        hands: who does the work.
        text: a file to learn from in the place of the built-in stories.
    """
    store = Store(folder)
    learnt_from = None if text is None else store_text(text, store.texts)

    def kept(claim: Claim) -> Study[Outcome]:
        outcome = yield from study(claim, budget, learnt_from)
        save_outcome(folder, outcome)
        return outcome

    workers = hands.gather(store.texts)
    try:
        schedule: TrialScheduler[Outcome] = TrialScheduler(store, workers, watch)
        found = schedule.run({claim.name: kept(claim) for claim in claims})
    finally:
        workers.close()
    return ClaimResults(list(found.values()), schedule.errors)
