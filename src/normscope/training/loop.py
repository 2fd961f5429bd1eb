"""The training loop: steps, and between them checkpoints, validation, samples and x-rays.

Everything due after a step runs before the next one, the checkpoint first. A killed run resumes from its last
checkpoint and repeats what was due there, so it ends with the same weights and the same metrics.
"""

import dataclasses
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, Literal

from normscope.checks import check_non_negative, check_positive_int, short_repr
from normscope.errors import ArgumentTypeError, ConfigError, NonFiniteError
from normscope.models.config_json import config_to_json
from normscope.models.summary import describe_model
from normscope.ops.kernel_mode import select_backend
from normscope.ops.numba_loader import has_compiled_kernels, kernels_available
from normscope.render.formatting import format_count
from normscope.runs.events import FinishedEvent, NoticeEvent, Observer, StartedEvent, StepEvent, ThreadsEvent
from normscope.runs.metrics_file import MetricsFile
from normscope.runs.report.page import write_report
from normscope.runs.run import Run
from normscope.runs.xray_snapshots import UpdateTracker
from normscope.runtime.adaptive_threads import TorchThreads
from normscope.runtime.devices import resolve_device
from normscope.runtime.ranks import Ranks, check_device, join_ranks, rank_errors
from normscope.storage.lock import locked
from normscope.training.config import LEARNING_RATES, ParallelName, TrainConfig
from normscope.training.memory_estimate import check_memory
from normscope.training.periodic_tasks import run_due_tasks
from normscope.training.rollback import RollbackCounter, recover
from normscope.training.session import TrainingSession
from normscope.training.stop_signals import StopOnSignal

EndReason = Literal["done", "stopped", "paused"]


def train_run(
    run: Run,
    observers: Sequence[Observer] = (),
    *,
    from_step: int | None = None,
    until: int | None = None,
    device: str | None = None,
    parallel: ParallelName | None = None,
) -> EndReason:
    """Train a run from its last checkpoint, or from the start, and write its report.

    Args:
        run: An open run.
        observers: Displays and trackers; metrics.jsonl is always written.
        from_step: Resume from this checkpoint instead of the last, and drop later ones; 0 is the start.
        until: Save and pause after this step.
        device, parallel: Settings to use instead of the run's, this time only.

    Returns:
        "done"; "stopped" after Ctrl-C or SIGTERM, with everything saved; or "paused" at `until`.
    """
    _check_arguments(run, observers)
    ranks = join_ranks()
    check_steps(run, ranks, from_step, until)
    config = _config_of_this_session(run, ranks, device=device, parallel=parallel)
    check_device(resolve_device(config.device), ranks)
    check_memory(run.config.model, config)  # the run may come from a larger machine
    try:
        with rank_errors() if ranks.size > 1 else nullcontext():
            reason = _train(run, config, observers, from_step, until, ranks)
    except NonFiniteError:
        if ranks.is_main:
            write_report(run.folder)  # shows how the run diverged
        raise
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise ConfigError(
            f"not enough memory for this run: {str(error).splitlines()[0]:.120}\n"
            f"fix: start a new run with a smaller micro_batch, context, width or depth; saved checkpoints are "
            f"intact"
        ) from error
    if ranks.is_main:
        write_report(run.folder)
    ranks.barrier()
    return reason


def check_steps(run: Run, ranks: Ranks, from_step: int | None, until: int | None) -> None:
    """Raise, on all ranks, if a run cannot be trained from and until these steps."""
    if until is not None:
        check_positive_int(until=until)
    if from_step is not None:
        check_non_negative(from_step=from_step)
    begin = ranks.broadcast(run.checkpoints.last() if ranks.is_main else None) if from_step is None else from_step
    if until is not None and begin is not None and until < begin:
        raise ConfigError(f"until={until}, but the run is already at step {begin}\nfix: a later step, or --from-step")


def _is_out_of_memory(error: Exception) -> bool:
    message = str(error).lower()
    return isinstance(error, MemoryError) or "allocate memory" in message or "out of memory" in message


def _config_of_this_session(run: Run, ranks: Ranks, **settings: Any) -> TrainConfig:
    if settings["parallel"] is not None and ranks.size == 1:
        raise ConfigError(
            f"parallel={settings['parallel']!r}, but this process trains alone\nfix: --nproc N, or omit --parallel"
        )
    given = {name: value for name, value in settings.items() if value is not None}
    return dataclasses.replace(run.config.train, **given)


def _train(
    run: Run,
    config: TrainConfig,
    observers: Sequence[Observer],
    from_step: int | None,
    until: int | None,
    ranks: Ranks,
) -> EndReason:
    with ExitStack() as stack:
        for observer in observers:
            stack.callback(observer.close)
        metrics = None
        if ranks.is_main:
            stack.enter_context(locked(run.folder))
            metrics = MetricsFile(run.metrics)
            stack.callback(metrics.close)
        stop = stack.enter_context(StopOnSignal())
        begin = run.checkpoints.last() if from_step is None else from_step
        session = TrainingSession(run, metrics, observers, ranks, config)
        session.begin(begin)
        if ranks.is_main:
            run.save_extension()  # only now: a resume that is refused changes nothing
        is_allowed = session.is_bitwise_equal
        threads = stack.enter_context(TorchThreads(adapt=session.can_adapt_threads, is_allowed=is_allowed))
        steps = run.config.train.steps
        return _loop(session, threads, stop, steps if until is None else min(until, steps))


def _loop(session: TrainingSession, threads: TorchThreads, stop: StopOnSignal, until: int) -> EndReason:
    def is_stopped() -> bool:
        return session.ranks.any(stop.requested is not None or session.events.disconnected)

    report_start(session)
    load, rollbacks = _LoadReports(session, threads), RollbackCounter()
    while True:
        try:
            run_due_tasks(session)
            stopped = is_stopped()
            if stopped or session.step >= until:
                session.save()
                break
            _step(session, threads)
            load.update()
        except NonFiniteError as error:
            recover(session, error, rollbacks)
    done = session.step >= session.config.steps
    reason: EndReason = "done" if done else "stopped" if stopped else "paused"
    if session.overfitting is not None:
        session.events.emit(NoticeEvent(session.step, session.overfitting))
    session.events.emit(FinishedEvent(session.step, reason, session.elapsed))
    return reason


def report_start(session: TrainingSession) -> None:
    """Emit the started event and all notices."""
    model, precision = session.run.config.model, session.precision
    info = {
        "model": describe_model(config_to_json(model)),
        "device": str(session.device),
        "precision": f"{str(precision.dtype).removeprefix('torch.')} ({precision.reason})",
        "threads": str(session.max_threads),
    }
    if session.ranks.size > 1:
        info["ranks"] = f"{session.ranks.size} {session.config.parallel}"
    session.events.emit_persistent(
        StartedEvent(
            session.step,
            folder=str(session.run.folder),
            steps=session.config.steps,
            parameters=session.model.parameter_count(),
            vocab_size=model.vocab_size,
            batch_tokens=session.config.batch * model.context,
            bytes_per_token=session.bytes_per_token,
            floor=session.corpus.floor_bits_per_byte,
            conversations=session.corpus.marks is not None,
            info=info,
        )
    )
    for text in startup_notices(session):
        session.events.emit_persistent(NoticeEvent(session.step, text))


def startup_notices(session: TrainingSession) -> list[str]:
    """The notices for a new or resumed run, one sentence each."""
    step, notices = session.step, [] if session.step else list(session.corpus.notices)
    origin = session.run.config.origin
    if origin is not None and not session.step:
        trained, total = (format_count(count) for count in _parameter_counts(session))
        notices.append(f"starting from {origin.path} ({origin.format}): {trained} of {total} parameters are trained")
    if session.dropped:
        dropped = ", ".join(map(str, session.dropped))
        notices.append(f"resuming from step {step}: later checkpoints are dropped ({dropped})")
    if session.missing_text:
        missing = ", ".join(session.missing_text)
        notices.append(f"source text not found: {missing}. The run continues with its saved tokens")
    rows = min(session.config.micro_batch or session.config.batch, session.config.batch)
    if rows < session.ranks.size:
        notices.append(
            f"{session.ranks.size - rows} of {session.ranks.size} ranks have no rows to compute: use a batch and "
            f"micro-batch of at least {session.ranks.size}, or {rows} ranks"
        )
    if session.rank_differences:
        different = "; ".join(session.rank_differences)
        notices.append(f"the ranks differ: {different}. Resuming is bitwise exact only if this stays so")
    if session.environment_changes:
        changes = ", ".join(session.environment_changes)
        effect = "Dropout draws other masks" if session.has_other_masks else "Results may differ in the last bits"
        notices.append(f"environment changed: {changes}. {effect} from here on")
    elif step and session.ranks.size > 1:
        notices.append(
            f"resumed from step {step} on {session.ranks.size} ranks as before: the bits are those of a run without "
            f"interruption"
        )
    if session.run.extension is not None:
        notices.append(str(session.run.extension))
    if session.device.type == "cpu" and must_compile_kernels():
        notices.append("compiling kernels for this machine (once): the first steps take a few seconds longer")
    return notices


def _parameter_counts(session: TrainingSession) -> tuple[int, int]:
    """The number of parameters that are trained, and of all."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in session.model.parameters()]
    return sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)


def must_compile_kernels() -> bool:
    """Whether fused kernels will be used but are not in numba's cache yet."""
    return select_backend() == "fused" and kernels_available() and not has_compiled_kernels()


def _step(session: TrainingSession, threads: TorchThreads) -> None:
    start = time.perf_counter()
    is_xray_due = session.config.is_xray_due(session.step + 1) and session.can_track_updates
    session.update_tracker = UpdateTracker(session.model) if is_xray_due else None
    with session.update_tracker or nullcontext():
        step = session.trainer.step()
    seconds = time.perf_counter() - start
    threads.step(seconds)
    epoch = session.batches.epoch(session.trainer.next_batch)
    speed = step.tokens / max(seconds, 1e-9)
    session.train_loss = step.loss
    lrs = {name: getattr(session.config, name) * step.lr_scale for name in LEARNING_RATES}
    session.events.emit(StepEvent(step.number, step.loss, step.grad_norm, step.lr_scale, epoch, seconds, speed, **lrs))


class _LoadReports:
    """Reports whether the machine is busy: to displays on every change, and with a notice the first time."""

    def __init__(self, session: TrainingSession, threads: TorchThreads) -> None:
        self._session, self._threads = session, threads
        self._last, self._noticed = (threads.max_threads, False), False

    def update(self) -> None:
        threads, events, step = self._threads, self._session.events, self._session.step
        now = threads.chosen, threads.is_busy
        if now != self._last:
            self._last = now
            events.emit_to_observers(ThreadsEvent(step, threads.chosen, threads.max_threads, threads.is_busy))
        if not self._noticed and (notice := threads.notice()) is not None:
            self._noticed = True
            events.emit(NoticeEvent(step, notice))


def _check_arguments(run: object, observers: object) -> None:
    if not isinstance(run, Run):
        raise ArgumentTypeError(
            f"train_run expects a Run, but got {short_repr(run)}\nfix: Run.open(folder), or create_run(...)"
        )
    known = list(observers) if isinstance(observers, Iterable) else [observers]
    for observer in known:
        if not (callable(getattr(observer, "on_event", None)) and callable(getattr(observer, "close", None))):
            raise ArgumentTypeError(
                f"an observer needs the methods on_event and close, but got {short_repr(observer)}\n"
                f"fix: observers=[LogLines(sys.stdout)], for example"
            )
