"""After a NaN or Inf: save a bundle that reproduces it, then stop, or roll back and skip the batch."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from normscope.errors import NonFiniteError, RankError
from normscope.models.gpt import GPT
from normscope.runs.events import FinishedEvent, NoticeEvent
from normscope.runs.run import NAN_FOLDER
from normscope.runtime.rng import set_rng_state
from normscope.training.config import FINETUNING
from normscope.training.nan_guard import NonFiniteOrigin, find_nonfinite, save_nan_bundle
from normscope.training.session import TrainingSession

MAX_ROLLBACKS = 10
"""Rollbacks in a row before the run gives up."""
TRIES_PER_CHECKPOINT = 5
"""Rollbacks to the newest checkpoint before the one before it is used: the newest may be beyond recovery."""


class RollbackCounter:
    """Counts the rollbacks since the run last made progress, and chooses the checkpoint to roll back to.

    >>> rollbacks = RollbackCounter()
    >>> [rollbacks.next_step([20, 30], fault_step=34) for _ in range(6)]
    [30, 30, 30, 30, 30, 20]
    >>> rollbacks.count([20, 30])
    6
    >>> rollbacks.count([30, 40])   # a checkpoint beyond the fault: the run made progress
    0
    """

    def __init__(self) -> None:
        self._count = self._fault_step = 0

    def count(self, checkpoints: Sequence[int]) -> int:
        """The number of rollbacks; a checkpoint beyond the fault resets it."""
        if checkpoints and checkpoints[-1] >= self._fault_step:
            self._count = 0
        return self._count

    def next_step(self, checkpoints: Sequence[int], fault_step: int) -> int | None:
        """Count a rollback and return the checkpoint to roll back to; None for the start of the run."""
        self._count = self.count(checkpoints) + 1
        self._fault_step = max(self._fault_step, fault_step)
        if not checkpoints:
            return None
        return checkpoints[-2] if self._count == TRIES_PER_CHECKPOINT + 1 and len(checkpoints) > 1 else checkpoints[-1]


def recover(session: TrainingSession, error: NonFiniteError, rollbacks: RollbackCounter) -> None:
    """Handle a NaN or Inf as `on_nan` says; raises if the run has to stop."""
    batch = session.trainer.next_batch
    # Rank 0 decides: on a network file system, others may still see an older folder.
    checkpoints = json.loads(session.ranks.from_main(lambda: json.dumps(session.run.checkpoints.steps())))
    count, problem = rollbacks.count(checkpoints), str(error).splitlines()[0]
    with session.trainer.full_model() as model:
        origin, text = (None, "") if model is None else _save_bundle(session, model, problem)
    if session.ranks.any(origin is not None and origin.when == "weights"):
        batch = session.trainer.last_batch()  # the batch whose update broke the weights
    if session.config.on_nan == "stop" or count == MAX_ROLLBACKS or batch < 0:
        if session.metrics is None:
            raise RankError(problem, is_echo=True) from error
        session.metrics.on_event(NoticeEvent(session.step, text))
        session.metrics.on_event(FinishedEvent(session.step, f"stopped: {problem}", session.elapsed))
        saved = "saved checkpoints are intact" if checkpoints else "no checkpoint yet"
        repeated = f"the error recurred after {count} rollbacks\n" if count else ""
        fix = f"start a new run with a lower --matrix-lr and --lr; {saved}"
        raise NonFiniteError(f"{text}\n{repeated}fix: {fix}") from error
    step = rollbacks.next_step(checkpoints, session.step + 1)
    skipped = _roll_back(session, batch, step, max(checkpoints, default=None))
    notice = f"{text}\nrolled back to step {session.step}; {skipped}"
    session.events.emit_persistent(NoticeEvent(session.step, notice))


def _save_bundle(session: TrainingSession, model: GPT, problem: str) -> tuple[NonFiniteOrigin | None, str]:
    """Find the origin of a NaN or Inf and save what `normscope replay` needs; returns the origin and a message."""
    trainer, ranks = session.trainer, session.ranks
    # As many rows at a time as a rank has in training: more may not fit into its memory.
    micro_batch = session.config.micro_batch
    if ranks.size > 1:
        micro_batch = -(-(micro_batch or session.config.batch) // ranks.size)
    batch = [tensor.to(session.device) for tensor in trainer.load_batch(trainer.next_batch)]
    set_rng_state(trainer.rng_before, session.device)
    with session.autocast():
        origin = find_nonfinite(model.train(), *batch, micro_batch=micro_batch)
    folder = session.run.safe_folder / NAN_FOLDER / f"{session.step + 1:08d}-batch-{trainer.next_batch}"
    state = {"error": problem, "origin": origin and asdict(origin), "micro_batch": micro_batch, **session.environment()}
    state["finetuning"] = {name: getattr(session.config, name) for name in FINETUNING}
    save_nan_bundle(folder, model, batch[0], batch[1], state, *batch[2:])
    where = "not reproduced when the batch is run again" if origin is None else f"first in {origin}"
    return origin, f"{problem}, {where}\nreproduce it: normscope replay {folder}"


def _roll_back(session: TrainingSession, bad_batch: int, step: int | None, last: int | None) -> str:
    """Roll back to a checkpoint, and skip the bad batch; if it is not the last one, also all batches before it."""
    session.begin(step, [*session.trainer.skipped_batches, bad_batch])
    if step == last:
        return f"batch {bad_batch} is skipped"
    trainer, first = session.trainer, session.trainer.next_batch
    trainer.skipped_batches = sorted({*trainer.skipped_batches, *range(first, bad_batch)})
    return f"batches {first} to {bad_batch} are skipped, because the error recurred after step {last}"
