"""What runs between steps, at the intervals of the config: checkpoints, x-rays, validation and samples."""

import math
import time
from dataclasses import asdict

import torch

from normscope.data.batches import windows
from normscope.generate.text import generate_text
from normscope.runs.events import NoticeEvent, SampleEvent, SignalEvent, ValidationEvent
from normscope.runs.xray_snapshots import layer_signal, take_xray
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
    # The end of a run before it was extended is still an end: what was done there is repeated on resume.
    is_end = step in (config.steps, *(extension.before if extension else ()))

    def is_due(every: int) -> bool:
        return is_end or (every > 0 and step > 0 and step % every == 0)

    # The checkpoint first: a killed run resumes there and repeats the tasks after it.
    if is_due(config.save_every):
        session.save()
    if step in {round(fraction * config.steps) for fraction in SIGNAL_FRACTIONS} or config.is_xray_due(step):
        xray(session)
    if is_due(config.eval_every):
        validate(session)
    if is_due(config.sample_every):
        sample(session)


def validate(session: TrainingSession) -> None:
    """Evaluate the model on the validation split; the best one so far is saved and marked."""
    start = time.perf_counter()
    # The same batch size as training, so that validation needs no more memory.
    batches = windows(session.corpus.validation, session.context, session.config.micro_batch or session.config.batch)
    result = evaluate(session.model, batches, session.bytes_per_token, session.autocast)
    best = math.isfinite(result.loss) and (session.best is None or result.loss < session.best)
    if best:
        session.save()  # the best checkpoint must exist before it is marked
        session.best = result.loss
        session.run.checkpoints.mark_best(session.step, result.loss)
    seconds = time.perf_counter() - start
    session.events.emit(ValidationEvent(session.step, **asdict(result), best=best, seconds=seconds))


def sample(session: TrainingSession) -> None:
    """Generate a text from the run's prompt."""
    (text,) = generate_text(
        session.model,
        session.corpus.tokenizer,
        session.run.config.prompt,
        max_new_tokens=SAMPLE_TOKENS,
        temperature=0.8,
        seed=session.config.seed,
    )
    session.events.emit(SampleEvent(session.step, text.prompt, text.text))


def xray(session: TrainingSession) -> None:
    """Take an x-ray on the first validation windows, the same at every step: of the layers, or a whole snapshot."""
    step, is_snapshot = session.step, session.config.is_xray_due(session.step)
    batch = next(windows(session.corpus.validation, session.context, XRAY_WINDOWS))
    inputs, targets = (torch.from_numpy(tokens).to(session.device) for tokens in batch)
    label = f"{session.run.folder.name} step {step}"
    record = take_xray(session.model, inputs, targets, label=label, step=step, only_layers=not is_snapshot)
    session.events.emit(SignalEvent(step, layer_signal(record)))
    if is_snapshot:
        record = record if session.update_watch is None else session.update_watch.add_to(record)
        for text in session.run.xray_snapshots.save(step, record, session.reported_findings):
            session.events.emit(NoticeEvent(step, text))
