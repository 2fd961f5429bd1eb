"""The training loop: steps, and between them checkpoints, validation, samples and x-rays.

Everything due after a step runs before the next one, the checkpoint first. A killed run resumes from its last
checkpoint and repeats what was due there, so it ends with the same weights and the same metrics.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Literal

import torch

from normscope.checks import check_non_negative, check_positive_int, short_repr
from normscope.data.batches import Batches, windows
from normscope.data.split import PARTS
from normscope.errors import ConfigError, DtypeError, NonFiniteError
from normscope.generate.text import generate_text
from normscope.models.config_json import config_to_json
from normscope.models.gpt import GPT
from normscope.models.summary import describe_model
from normscope.runs.environment import environment, environment_changes
from normscope.runs.events import (
    CheckpointEvent,
    FinishedEvent,
    NoticeEvent,
    Observer,
    SampleEvent,
    SignalEvent,
    StartedEvent,
    StepEvent,
    ThreadsEvent,
    ValidationEvent,
)
from normscope.runs.lock import locked
from normscope.runs.metrics import MetricsFile
from normscope.runs.report.page import write_report
from normscope.runs.run import NAN_FOLDER, Run, check_sources_unchanged
from normscope.runs.xray_snapshots import UpdateWatch, layer_signal, take_xray
from normscope.runtime.adaptive_threads import TorchThreads
from normscope.runtime.allocator import keep_freed_memory
from normscope.runtime.devices import resolve_device
from normscope.runtime.machine_load import usable_cores
from normscope.runtime.precision import choose_precision
from normscope.runtime.rng import set_rng_state
from normscope.training.event_bus import EventBus
from normscope.training.memory_estimate import check_memory
from normscope.training.nan_guard import find_nonfinite, origin_to_json, save_nan_bundle
from normscope.training.restore import load_checkpoint_state
from normscope.training.rollback import MAX_ROLLBACKS, Rollbacks
from normscope.training.signals import StopOnSignal
from normscope.training.startup_notices import startup_notices
from normscope.training.trainer import Trainer
from normscope.training.validation import evaluate

SIGNAL_FRACTIONS = (0.0, 0.02, 0.1, 0.3, 1.0)
"""Fractions of the run after which the signal per layer is recorded for the report."""
XRAY_WINDOWS = 4
SAMPLE_TOKENS = 240
MAX_THREADS_PER_CORE = 4
"""Upper limit, per core, of a checkpoint's thread count that is tried for bitwise equality on resume."""
_NONFINITE_FIX = "start a new run with a lower --matrix-lr and --lr"

EndReason = Literal["done", "stopped", "paused"]


def train_run(
    run: Run, observers: Sequence[Observer] = (), *, from_step: int | None = None, until: int | None = None
) -> EndReason:
    """Train a run from its last checkpoint, or from the start, and write its report.

    Args:
        run: An open run.
        observers: Displays and trackers; metrics.jsonl is always written.
        from_step: Resume from this checkpoint instead of the last, and drop later ones; 0 is the start.
        until: Save and pause after this step.

    Returns:
        "done"; "stopped" after Ctrl-C or SIGTERM, with everything saved; or "paused" at `until`.
    """
    _check_arguments(run, observers)
    if until is not None:
        check_positive_int(until=until)
    if from_step is not None:
        check_non_negative(from_step=from_step)
    check_memory(run.config.model, run.config.train)  # the run may come from a larger machine
    try:
        reason = _train(run, observers, from_step, until)
    except NonFiniteError:
        write_report(run.folder)  # shows how the run diverged
        raise
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise ConfigError(
            f"not enough memory for this run: {str(error).splitlines()[0]:.120}\n"
            f"fix: start a new run with a smaller --micro-batch, --context, --width or --depth; saved checkpoints "
            f"are intact"
        ) from error
    write_report(run.folder)
    return reason


def _is_out_of_memory(error: Exception) -> bool:
    message = str(error).lower()
    return isinstance(error, MemoryError) or "allocate memory" in message or "out of memory" in message


def _train(run: Run, observers: Sequence[Observer], from_step: int | None, until: int | None) -> EndReason:
    with ExitStack() as stack:
        for observer in observers:
            stack.callback(observer.close)
        stack.enter_context(locked(run.folder))
        stop = stack.enter_context(StopOnSignal())
        metrics = MetricsFile(run.metrics)
        stack.callback(metrics.close)
        begin = run.checkpoints.last() if from_step is None else from_step
        if until is not None and begin is not None and until < begin:
            raise ConfigError(
                f"until={until}, but the run is already at step {begin}\nfix: a later step, or --from-step"
            )
        loop = _Loop(run, metrics, observers, stop)
        loop.begin(begin)
        loop.threads = stack.enter_context(TorchThreads(adapt=loop.can_adapt, is_allowed=loop.is_bitwise_equal))
        stack.callback(delattr, loop, "threads")  # breaks a reference cycle that would keep the corpus files open
        return loop.go(run.config.train.steps if until is None else min(until, run.config.train.steps))


def _check_arguments(run: object, observers: object) -> None:
    if not isinstance(run, Run):
        raise DtypeError(
            f"train_run expects a Run, but got {short_repr(run)}\nfix: Run.open(folder), or start_run(...)"
        )
    known = list(observers) if isinstance(observers, Iterable) else [observers]
    for observer in known:
        if not (callable(getattr(observer, "on_event", None)) and callable(getattr(observer, "close", None))):
            raise DtypeError(
                f"an observer needs the methods on_event and close, but got {short_repr(observer)}\n"
                f"fix: observers=[LogLines(sys.stdout)], for example"
            )


class _Loop:
    """A run in progress. `begin` builds its state on a start, a resume or a rollback."""

    threads: TorchThreads

    def __init__(self, run: Run, metrics: MetricsFile, observers: Sequence[Observer], stop: StopOnSignal) -> None:
        keep_freed_memory()
        self.run, self.config, self.stop = run, run.config.train, stop
        self.corpus = run.corpus(verify=PARTS)
        self.missing_text = check_sources_unchanged(self.corpus)
        self.device = resolve_device(self.config.device)
        self.precision = choose_precision(self.config.precision, self.device)
        context = run.config.model.context
        self.batches = Batches(self.corpus.train, context, self.config.batch, self.config.seed)
        self.metrics, self.events = metrics, EventBus(metrics, observers)
        self.rollbacks, self.changes = Rollbacks(), list[str]()
        self.max_threads = torch.get_num_threads()
        self.last_load, self.load_reported = (self.max_threads, False), False

    def begin(self, step: int | None, skipped_batches: Sequence[int] = ()) -> None:
        """Restore the checkpoint of a step; None, or an unsaved step 0, is the start of the run."""
        torch.manual_seed(self.config.seed)
        self.model = GPT(self.run.config.model).to(self.device)
        self.trainer = Trainer(self.model, self.config, self.batches, self.precision.autocast(self.device))
        self.trainer.skipped_batches = list(skipped_batches)
        self.best: float | None = None
        seconds, metrics_bytes, checkpoint = 0.0, 0, None
        if step is not None and (step != 0 or step in self.run.checkpoints.steps()):
            tensors, state = load_checkpoint_state(self.run, step, self.trainer)
            self.metrics.verify(state["metrics_bytes"], state["metrics_sha256"])
            self.trainer.restore(tensors, state)
            self.best, seconds, metrics_bytes = state["best"], state["seconds"], state["metrics_bytes"]
            checkpoint = str(self.run.checkpoints.path(step))
            self.changes = environment_changes(
                self._with_equivalent_threads(state.get("environment", {})), self._environment()
            )
        self.dropped = [later for later in self.run.checkpoints.steps() if later > self.trainer.steps_done]
        self.run.checkpoints.drop_after(self.trainer.steps_done)
        self.run.xray_snapshots.drop_after(self.trainer.steps_done)
        self.reported_findings = (
            self.run.xray_snapshots.findings_before(self.trainer.steps_done) if self.config.xray_every else set()
        )
        self.update_watch: UpdateWatch | None = None
        self.events.roll_back(self.trainer.steps_done, metrics_bytes, checkpoint)
        self.clock = time.perf_counter() - seconds

    def go(self, until: int) -> EndReason:
        self._emit_start()
        while True:
            try:
                self.metrics_bytes_before = self.metrics.size()
                self._run_due_tasks()
                if self._stop_requested() or self.trainer.steps_done >= until:
                    self._save()
                    break
                self._step()
            except NonFiniteError as error:
                self._handle_nonfinite(error)
        done = self.trainer.steps_done >= self.config.steps
        reason: EndReason = "stopped" if self._stop_requested() and not done else "done" if done else "paused"
        self.events.emit(FinishedEvent(self.trainer.steps_done, reason, self._elapsed()))
        return reason

    def _stop_requested(self) -> bool:
        return self.stop.requested is not None or self.events.disconnected

    def _step(self) -> None:
        start = time.perf_counter()
        self.update_watch = UpdateWatch(self.model) if self.config.is_xray_due(self.trainer.steps_done + 1) else None
        with self.update_watch or nullcontext():
            step = self.trainer.step()
        seconds = time.perf_counter() - start
        self.threads.step(seconds)
        epoch = self.batches.epoch(self.trainer.next_batch)
        self.events.emit(
            StepEvent(
                step.number, step.loss, step.grad_norm, step.lr_scale, epoch, seconds, step.tokens / max(seconds, 1e-9)
            )
        )
        self._report_load()

    @property
    def can_adapt(self) -> bool:
        """Whether the number of threads may change during the run; compiled code has it built in."""
        return self.device.type == "cpu" and not self.config.compile

    def is_bitwise_equal(self, threads: int) -> bool:
        """Whether a step with this many threads is bitwise identical to one with all threads."""
        return self.trainer.is_bitwise_equal(threads, self.max_threads)

    def _report_load(self) -> None:
        """Show whether the machine is busy; the first time also with a notice."""
        threads, busy = now = self.threads.chosen, self.threads.is_busy
        if now != self.last_load:
            self.last_load = now
            self.events.emit_to_observers(ThreadsEvent(self.trainer.steps_done, threads, self.max_threads, busy))
        if not self.load_reported and (notice := self.threads.notice()) is not None:
            self.load_reported = True
            self.events.emit(NoticeEvent(self.trainer.steps_done, notice))

    def _run_due_tasks(self) -> None:
        """Run what is due after a step, the checkpoint first: tasks lost to a kill are repeated from there."""
        done, config = self.trainer.steps_done, self.config
        if self._due(config.save_every):
            self._save()
        if done in {round(fraction * config.steps) for fraction in SIGNAL_FRACTIONS} or self.config.is_xray_due(done):
            self._xray()
        if self._due(config.eval_every):
            self._validate()
        if self._due(config.sample_every):
            self._sample()

    def _due(self, every: int) -> bool:
        done = self.trainer.steps_done
        return done == self.config.steps or (every > 0 and done > 0 and done % every == 0)

    def _save(self) -> None:
        step = self.trainer.steps_done
        if self.run.checkpoints.last() == step:
            return
        tensors, state = self.trainer.state()
        self.metrics.sync()
        state |= {
            "config": self.run.config.to_json(),
            "best": self.best,
            "seconds": self._elapsed(),
            # Without the events of this step: a resumed run repeats what is due here and emits them again.
            "metrics_bytes": self.metrics_bytes_before,
            "metrics_sha256": self.metrics.checksum(self.metrics_bytes_before),
            "environment": self._environment(),
        }
        self.run.checkpoints.save(step, tensors, state)
        self.rollbacks.saved(step)
        self.events.emit(CheckpointEvent(step, str(self.run.checkpoints.path(step))))

    def _validate(self) -> None:
        start = time.perf_counter()
        context = self.run.config.model.context
        # The same batch size as training, so that validation needs no more memory.
        size = self.config.micro_batch or self.config.batch
        result = evaluate(
            self.model,
            windows(self.corpus.validation, context, size),
            self._bytes_per_token(),
            self.precision.autocast(self.device),
        )
        best = math.isfinite(result.loss) and (self.best is None or result.loss < self.best)
        if best:
            self._save()  # the best checkpoint must exist before it is marked
            self.best = result.loss
            self.run.checkpoints.mark_best(self.trainer.steps_done, result.loss)
        seconds = time.perf_counter() - start
        self.events.emit(ValidationEvent(self.trainer.steps_done, result.loss, result.bits_per_byte, best, seconds))

    def _sample(self) -> None:
        (sample,) = generate_text(
            self.model,
            self.corpus.tokenizer,
            self.run.config.prompt,
            max_new_tokens=SAMPLE_TOKENS,
            temperature=0.8,
            seed=self.config.seed,
        )
        self.events.emit(SampleEvent(self.trainer.steps_done, sample.prompt, sample.text))

    def _xray(self) -> None:
        """Take an x-ray on the first validation windows, the same at every step."""
        done = self.trainer.steps_done
        inputs, targets = next(windows(self.corpus.validation, self.run.config.model.context, XRAY_WINDOWS))
        batch = torch.from_numpy(inputs).to(self.device), torch.from_numpy(targets).to(self.device)
        record = take_xray(self.model, *batch, label=f"{self.run.folder.name} step {done}", step=done)
        self.events.emit(SignalEvent(done, layer_signal(record)))
        if self.config.is_xray_due(done):
            record = record if self.update_watch is None else self.update_watch.add_to(record)
            for text in self.run.xray_snapshots.save(done, record, self.reported_findings):
                self.events.emit(NoticeEvent(done, text))

    def _handle_nonfinite(self, error: NonFiniteError) -> None:
        """Find the origin of a NaN or Inf, save a bundle to replay it, then stop or roll back."""
        problem = str(error).splitlines()[0]
        number, micro_batch = self.trainer.next_batch, self.config.micro_batch
        inputs, targets = self.trainer.load_batch(number)
        set_rng_state(self.trainer.rng_before, self.device)
        with self.precision.autocast(self.device)():
            origin = find_nonfinite(self.model.train(), inputs, targets, micro_batch)
        folder = self.run.safe_folder / NAN_FOLDER / f"{self.trainer.steps_done + 1:08d}-batch-{number}"
        state = {"error": problem, "origin": origin_to_json(origin), "micro_batch": micro_batch, **self._environment()}
        save_nan_bundle(folder, self.model, inputs, targets, state)
        where = "not reproduced when the batch is run again" if origin is None else f"first in {origin}"
        text = f"{problem}, {where}\nreproduce it: normscope replay {folder}"
        if origin is not None and origin.when == "weights":
            number = self.trainer.last_batch()  # the batch whose update broke the weights
        if self.config.on_nan == "stop" or self.rollbacks.count == MAX_ROLLBACKS or number < 0:
            self.metrics.on_event(NoticeEvent(self.trainer.steps_done, text))
            self.metrics.on_event(FinishedEvent(self.trainer.steps_done, f"stopped: {problem}", self._elapsed()))
            saved = "no checkpoint yet" if self.run.checkpoints.last() is None else "saved checkpoints are intact"
            count = self.rollbacks.count
            repeated = f"it came back after {count} rollbacks\n" if count else ""
            raise NonFiniteError(f"{text}\n{repeated}fix: {_NONFINITE_FIX}; {saved}") from error
        self._roll_back(number, text)

    def _roll_back(self, bad_batch: int, problem: str) -> None:
        """Roll back to the last checkpoint; after repeated failures, to the one before, skipping all batches since."""
        last = self.run.checkpoints.last()
        step = self.rollbacks.next_step(self.run.checkpoints.steps(), self.trainer.steps_done + 1)
        self.begin(step, [*self.trainer.skipped_batches, bad_batch])
        skipped = f"batch {bad_batch} is skipped"
        if step != last:
            first = self.trainer.next_batch
            self.trainer.skipped_batches = sorted({*self.trainer.skipped_batches, *range(first, bad_batch)})
            skipped = f"batches {first} to {bad_batch} are skipped, since it kept coming back from step {last}"
        self.events.emit_lasting(
            NoticeEvent(self.trainer.steps_done, f"{problem}\nrolled back to step {self.trainer.steps_done}; {skipped}")
        )

    def _emit_start(self) -> None:
        info = {
            "model": describe_model(config_to_json(self.run.config.model)),
            "device": str(self.device),
            "precision": f"{str(self.precision.dtype).removeprefix('torch.')} ({self.precision.reason})",
            "threads": str(self.max_threads),
        }
        self.events.emit_lasting(
            StartedEvent(
                self.trainer.steps_done,
                folder=str(self.run.folder),
                steps=self.config.steps,
                parameters=self.model.parameter_count(),
                vocab_size=self.run.config.model.vocab_size,
                batch_tokens=self.config.batch * self.run.config.model.context,
                bytes_per_token=self._bytes_per_token(),
                floor=self.corpus.floor_bits_per_byte,
                info=info,
            )
        )
        notices = [] if self.trainer.steps_done else list(self.corpus.notices)
        notices += startup_notices(self.trainer.steps_done, self.dropped, self.missing_text, self.changes, self.device)
        for notice in notices:
            self.events.emit_lasting(NoticeEvent(self.trainer.steps_done, notice))

    def _bytes_per_token(self) -> float:
        held_out = self.corpus.record.validation
        return held_out.bytes / held_out.tokens

    def _environment(self) -> dict[str, str]:
        return environment(self.device, self.precision.dtype, self.max_threads)

    def _with_equivalent_threads(self, before: Mapping[str, str]) -> Mapping[str, str]:
        """A checkpoint's environment, with this run's thread count if the bits are the same."""
        threads = before.get("threads", "")
        if threads == str(self.max_threads) or not self.can_adapt or not threads.isdecimal():
            return before
        if not 0 < int(threads) <= MAX_THREADS_PER_CORE * usable_cores() or not self.is_bitwise_equal(int(threads)):
            return before
        return {**before, "threads": str(self.max_threads)}

    def _elapsed(self) -> float:
        return time.perf_counter() - self.clock
