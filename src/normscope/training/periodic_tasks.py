"""What runs between steps, at the intervals of the config: checkpoints, x-rays, validation and samples."""

import math
import time
from dataclasses import asdict

import torch

from normscope.data.packed_batches import validation_batches
from normscope.diagnostics.record import XrayRecord
from normscope.generate.text import generate_text
from normscope.models.gpt import GPT
from normscope.runs.events import NoticeEvent, SampleEvent, SignalEvent, ValidationEvent
from normscope.runs.metrics_file import read_metrics
from normscope.runs.xray_snapshots import layer_signal, take_xray
from normscope.training.overfitting import describe_overfitting
from normscope.training.session import TrainingSession
from normscope.training.validation import evaluate

SIGNAL_FRACTIONS = (0.0, 0.02, 0.1, 0.3, 1.0)
"""Fractions of the run after which the signal per layer is recorded for the report."""
XRAY_WINDOWS = 4
SAMPLE_TOKENS = 240


def run_due_tasks(session: TrainingSession) -> None:
    """Run all tasks that are due after the current step."""
    session.mark_metrics()
    config, step, extension = session.config, session.step, session.run.extension
    # The last step before an extension still counts as a last step: its tasks are repeated on resume.
    is_end = step in (config.steps, *(extension.before if extension else ()))

    def is_due(every: int) -> bool:
        return is_end or (every > 0 and step > 0 and step % every == 0)

    is_signal_due = step in {round(fraction * config.steps) for fraction in SIGNAL_FRACTIONS}
    record = take_due_xray(session) if is_signal_due or config.is_xray_due(step) else None  # None on other ranks
    # The checkpoint before everything that emits events: a killed run resumes there and emits them again.
    if is_due(config.save_every):
        session.save()
    if record is not None:
        report_xray(session, record)
    if is_due(config.eval_every):
        validate(session)
    if is_due(config.sample_every):
        sample(session)


def validate(session: TrainingSession) -> None:
    """Evaluate the model on the validation split; the best one so far is saved and marked."""
    start = time.perf_counter()
    # The same batch size as training, so that validation needs no more memory.
    batches = validation_batches(session.corpus, session.context, session.config.micro_batch or session.config.batch)
    loss_of = session.trainer.parallel.validation_loss
    result = evaluate(session.model, batches, session.bytes_per_token, session.autocast, session.ranks, loss_of)
    best = math.isfinite(result.loss) and (session.best is None or result.loss < session.best)
    if best:
        session.save()  # the best checkpoint must exist before it is marked
        session.best = result.loss
        if session.ranks.is_main:
            session.run.checkpoints.mark_best(session.step, result.loss)
    seconds = time.perf_counter() - start
    session.events.emit(ValidationEvent(session.step, **asdict(result), best=best, seconds=seconds))
    if session.ranks.is_main:
        _check_overfitting(session, result.loss)


def _check_overfitting(session: TrainingSession, loss: float) -> None:
    """Record whether the model overfits; report it when it starts and again at the end."""
    before, session.overfitting = session.overfitting, None
    step = session.run.checkpoints.marked_best()
    if step is None or session.best is None or not loss > session.best:
        return
    session.overfitting = describe_overfitting(step, session.best, loss, _train_loss(session))
    if session.overfitting is not None and before is None and session.step < session.config.steps:
        # Not into metrics.jsonl: a run that is resumed in between would tell it at another step.
        session.events.emit_to_observers(NoticeEvent(session.step, session.overfitting))


def _train_loss(session: TrainingSession) -> float:
    """The training loss of the last step; from metrics.jsonl if it was made before the run was resumed."""
    if session.train_loss is not None:
        return session.train_loss
    return next((event["loss"] for event in reversed(read_metrics(session.run.metrics)) if event["kind"] == "step"), 0)


def sample(session: TrainingSession) -> None:
    """Generate a text from the run's prompt, on rank 0."""
    with session.trainer.full_model() as model:
        if model is None:
            return
        (text,) = generate_text(
            model,
            session.corpus.tokenizer,
            session.run.config.prompt,
            max_new_tokens=SAMPLE_TOKENS,
            temperature=0.8,
            seed=session.config.seed,
        )
    session.events.emit(SampleEvent(session.step, text.prompt, text.text))


def take_due_xray(session: TrainingSession) -> XrayRecord | None:
    """X-ray the first validation windows, the same at every step: only the layers, or a whole snapshot, which is saved.

    Rank 0 does it; the others get None.

    A snapshot is saved before the checkpoint, since it has the updates of the last step. A resumed run doesn't repeat
    that step.
    """
    with session.trainer.full_model() as model:
        return None if model is None else _take_xray(session, model)


def _take_xray(session: TrainingSession, model: GPT) -> XrayRecord:
    step, is_snapshot, snapshots = session.step, session.config.is_xray_due(session.step), session.run.xray_snapshots
    arrays = next(validation_batches(session.corpus, session.context, XRAY_WINDOWS))
    batch = tuple(torch.from_numpy(tokens).to(session.device) for tokens in arrays)
    label = f"{session.run.folder.name} step {step}"
    record = take_xray(model, *batch, label=label, step=step, only_layers=not is_snapshot)
    if is_snapshot:
        watch = session.update_tracker
        record = snapshots.with_saved_updates(step, record) if watch is None else watch.add_to(record)
        snapshots.save(step, record)
    return record


def report_xray(session: TrainingSession, record: XrayRecord) -> None:
    """Emit the signal per layer, and a notice for each new kind of problem that a snapshot shows."""
    step, snapshots = session.step, session.run.xray_snapshots
    session.events.emit(SignalEvent(step, layer_signal(record)))
    if session.config.is_xray_due(step):
        for text in snapshots.new_problems(step, record, session.reported_findings):
            session.events.emit(NoticeEvent(step, text))
