"""The loop: steps, and between them what is due: saving, validation, samples; until it is done or told to stop.

What is due after a step happens before the next one, saving first. A run that is killed anywhere goes on from its last
checkpoint and does what was due there again, so it ends with the same weights and the same metrics.
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
from normscope.runs.environment import changes, surroundings
from normscope.runs.events import (
    Finished,
    Noticed,
    Observer,
    Sampled,
    Saved,
    Signalled,
    Started,
    Stepped,
    ThreadsChanged,
    Validated,
)
from normscope.runs.lock import locked
from normscope.runs.metrics import MetricsFile
from normscope.runs.run import Run, refuse_changed_text
from normscope.runs.xray_snapshots import StepWatch, layer_signal, look
from normscope.runtime.adaptive_threads import TorchThreads
from normscope.runtime.allocator import hold_memory
from normscope.runtime.devices import resolve_device
from normscope.runtime.machine_load import usable_cores
from normscope.runtime.precision import choose_precision
from normscope.runtime.rng import set_random_state
from normscope.training.event_bus import Audience
from normscope.training.nan_guard import fault_to_json, find_fault, save_bundle
from normscope.training.restore import load_state
from normscope.training.rollback import MOST_REWINDS, Rewinds
from normscope.training.signals import Stopping
from normscope.training.startup_notices import opening_notices
from normscope.training.trainer import Trainer
from normscope.training.validation import evaluate

SIGNAL_SHARES = (0.0, 0.02, 0.1, 0.3, 1.0)
"""After which shares of the run the report shows the signal per layer."""
LOOK_TEXTS = 4
SAMPLE_TOKENS = 240
MOST_THREADS_TRIED = 4
"""How many threads per core are tried to find out whether a run has the bits that it had with so many."""
_ADVICE = "a new run with a lower --matrix-rate and --rate"

Reason = Literal["done", "stopped", "paused"]


def train(
    run: Run, observers: Sequence[Observer] = (), *, from_step: int | None = None, until: int | None = None
) -> Reason:
    """Train a run to its end, from its last checkpoint or from the beginning.

    Args:
        run: an open run folder.
        observers: who is told what happens; metrics.jsonl is written in any case.
        from_step: go on from this checkpoint instead of the last; later ones are forgotten. 0 is the beginning.
        until: pause after this many steps, saved.

    Returns:
        done; or stopped, after Ctrl-C or SIGTERM, with everything saved; or paused, at `until`.
    """
    _check_arguments(run, observers)
    if until is not None:
        check_positive_int(until=until)
    if from_step is not None:
        check_non_negative(from_step=from_step)
    with ExitStack() as stack:
        for observer in observers:
            stack.callback(observer.close)
        stack.enter_context(locked(run.folder))
        stopping = stack.enter_context(Stopping())
        metrics = MetricsFile(run.metrics)
        stack.callback(metrics.close)
        begin = run.checkpoints.last() if from_step is None else from_step
        if until is not None and begin is not None and until < begin:
            raise ConfigError(
                f"until={until}, but the run is at step {begin} already\nfix: a later step, or --from-step"
            )
        loop = _Loop(run, metrics, observers, stopping)
        loop.begin(begin)
        loop.threads = stack.enter_context(TorchThreads(adapt=loop.can_adapt, allowed=loop.keeps_bits))
        stack.callback(delattr, loop, "threads")  # they know the loop, and both would stay, with the corpus' open files
        return loop.go(run.config.train.steps if until is None else min(until, run.config.train.steps))


def _check_arguments(run: object, observers: object) -> None:
    if not isinstance(run, Run):
        raise DtypeError(f"a Run is trained, but got {short_repr(run)}\nfix: Run.open(folder), or start(...)")
    known = list(observers) if isinstance(observers, Iterable) else [observers]
    for observer in known:
        if not (callable(getattr(observer, "see", None)) and callable(getattr(observer, "close", None))):
            raise DtypeError(
                f"an observer has the methods see and close, but got {short_repr(observer)}\n"
                f"fix: observers=[PlainLines(sys.stdout)], for instance"
            )


class _Loop:
    """A run in motion. Everything is built by `begin`, whether the run starts, goes on or goes back."""

    threads: TorchThreads

    def __init__(self, run: Run, metrics: MetricsFile, observers: Sequence[Observer], stopping: Stopping) -> None:
        hold_memory()
        self.run, self.config, self.stopping = run, run.config.train, stopping
        self.corpus = run.corpus(verify=PARTS)
        self.missing_text = refuse_changed_text(self.corpus)
        self.device = resolve_device(self.config.device)
        self.precision = choose_precision(self.config.precision, self.device)
        context = run.config.model.context
        self.batches = Batches(self.corpus.train, context, self.config.batch, self.config.seed)
        self.metrics, self.audience = metrics, Audience(metrics, observers)
        self.rewinds, self.changes = Rewinds(), list[str]()
        self.most_threads = torch.get_num_threads()
        self.shown_load, self.load_was_told = (self.most_threads, False), False

    def begin(self, step: int | None, passed_over: Sequence[int] = ()) -> None:
        """Be where the checkpoint of a step was taken; None is the beginning, and so is 0 if it was never saved."""
        torch.manual_seed(self.config.seed)
        self.model = GPT(self.run.config.model).to(self.device)
        self.trainer = Trainer(self.model, self.config, self.batches, self.precision.autocast(self.device))
        self.trainer.passed_over = list(passed_over)
        self.best: float | None = None
        seconds, metrics_bytes, checkpoint = 0.0, 0, None
        if step is not None and (step != 0 or step in self.run.checkpoints.steps()):
            tensors, facts = load_state(self.run, step, self.trainer)
            self.metrics.check(facts["metrics_bytes"], facts["metrics_sha256"])
            self.trainer.restore(tensors, facts)
            self.best, seconds, metrics_bytes = facts["best"], facts["seconds"], facts["metrics_bytes"]
            checkpoint = str(self.run.checkpoints.path(step))
            self.changes = changes(self._as_if_here(facts.get("surroundings", {})), self._surroundings())
        self.dropped = [later for later in self.run.checkpoints.steps() if later > self.trainer.done]
        self.run.checkpoints.forget_after(self.trainer.done)
        self.run.looks.forget_after(self.trainer.done)
        self.told_faults = self.run.looks.faults_before(self.trainer.done) if self.config.xray_every else set()
        self.step_watch: StepWatch | None = None
        self.audience.go_back(self.trainer.done, metrics_bytes, checkpoint)
        self.clock = time.perf_counter() - seconds

    def go(self, until: int) -> Reason:
        self._tell_start()
        while True:
            try:
                self.told_before = self.metrics.size()
                self._do_what_is_due()
                if self._wants_to_stop() or self.trainer.done >= until:
                    self._save()
                    break
                self._step()
            except NonFiniteError as error:
                self._meet_fault(error)
        done = self.trainer.done >= self.config.steps
        reason: Reason = "stopped" if self._wants_to_stop() and not done else "done" if done else "paused"
        self.audience.tell(Finished(self.trainer.done, reason, self._elapsed()))
        return reason

    def _wants_to_stop(self) -> bool:
        return self.stopping.requested is not None or self.audience.left

    def _step(self) -> None:
        start = time.perf_counter()
        self.step_watch = StepWatch(self.model) if self.config.xray_is_due(self.trainer.done + 1) else None
        with self.step_watch or nullcontext():
            step = self.trainer.step()
        seconds = time.perf_counter() - start
        self.threads.step(seconds)
        epoch = self.batches.epoch(self.trainer.next_batch)
        self.audience.tell(
            Stepped(
                step.number, step.loss, step.gradient_norm, step.rate, epoch, seconds, step.tokens / max(seconds, 1e-9)
            )
        )

        self._tell_load()

    @property
    def can_adapt(self) -> bool:
        """Whether the number of threads may change in the run; compiled code has the number built in."""
        return self.device.type == "cpu" and not self.config.compile

    def keeps_bits(self, threads: int) -> bool:
        """Whether a step with so many threads has the bits that it has with all of them."""
        return self.trainer.keeps_bits(threads, self.most_threads)

    def _tell_load(self) -> None:
        """Show that the machine is busy, or no longer is; the first time in words that stay."""
        threads, busy = now = self.threads.settled, self.threads.is_busy
        if now != self.shown_load:
            self.shown_load = now
            self.audience.show(ThreadsChanged(self.trainer.done, threads, self.most_threads, busy))
        if not self.load_was_told and (notice := self.threads.notice()) is not None:
            self.load_was_told = True
            self.audience.tell(Noticed(self.trainer.done, notice))

    def _do_what_is_due(self) -> None:
        """Saving first, so that a kill in what follows loses nothing; it is then done again."""
        done, config = self.trainer.done, self.config
        if self._due(config.save_every):
            self._save()
        if done in {round(share * config.steps) for share in SIGNAL_SHARES} or self.config.xray_is_due(done):
            self._look()
        if self._due(config.evaluate_every):
            self._validate()
        if self._due(config.sample_every):
            self._sample()

    def _due(self, every: int) -> bool:
        done = self.trainer.done
        return done == self.config.steps or (every > 0 and done > 0 and done % every == 0)

    def _save(self) -> None:
        step = self.trainer.done
        if self.run.checkpoints.last() == step:
            return
        tensors, facts = self.trainer.state()
        self.metrics.sync()
        facts |= {
            "config": self.run.config.to_json(),
            "best": self.best,
            "seconds": self._elapsed(),
            "metrics_bytes": self.told_before,  # whoever goes on from here does what is due here, and tells it
            "metrics_sha256": self.metrics.checksum(self.told_before),
            "surroundings": self._surroundings(),
        }
        self.run.checkpoints.save(step, tensors, facts)
        self.rewinds.saved(step)
        self.audience.tell(Saved(step, str(self.run.checkpoints.path(step))))

    def _validate(self) -> None:
        start = time.perf_counter()
        context = self.run.config.model.context
        # As many tokens at a time as a step takes, so that validation needs no more memory than training does.
        size = self.config.micro_batch or self.config.batch
        found = evaluate(
            self.model,
            windows(self.corpus.validation, context, size),
            self._bytes_per_token(),
            self.precision.autocast(self.device),
        )
        best = math.isfinite(found.loss) and (self.best is None or found.loss < self.best)
        if best:
            self._save()  # the best must be there to be had
            self.best = found.loss
            self.run.checkpoints.mark_best(self.trainer.done, found.loss)
        seconds = time.perf_counter() - start
        self.audience.tell(Validated(self.trainer.done, found.loss, found.bits_per_byte, best, seconds))

    def _sample(self) -> None:
        (sample,) = generate_text(
            self.model,
            self.corpus.tokenizer,
            self.run.config.prompt,
            max_new_tokens=SAMPLE_TOKENS,
            temperature=0.8,
            seed=self.config.seed,
        )
        self.audience.tell(Sampled(self.trainer.done, sample.prompt, sample.text))

    def _look(self) -> None:
        """An x-ray, on the first windows of the validation text: the same at every step."""
        done = self.trainer.done
        inputs, targets = next(windows(self.corpus.validation, self.run.config.model.context, LOOK_TEXTS))
        batch = torch.from_numpy(inputs).to(self.device), torch.from_numpy(targets).to(self.device)
        record = look(self.model, *batch, label=f"{self.run.folder.name} step {done}", done=done)
        self.audience.tell(Signalled(done, layer_signal(record)))
        if self.config.xray_is_due(done):
            record = record if self.step_watch is None else self.step_watch.added_to(record)
            for text in self.run.looks.keep(done, record, self.told_faults):
                self.audience.tell(Noticed(done, text))

    def _meet_fault(self, error: NonFiniteError) -> None:
        """Name what made the number, keep what it takes to see it again, and stop or go back."""
        problem = str(error).splitlines()[0]
        number, micro_batch = self.trainer.next_batch, self.config.micro_batch
        inputs, targets = self.trainer.load_batch(number)
        set_random_state(self.trainer.random_before, self.device)
        with self.precision.autocast(self.device)():
            fault = find_fault(self.model.train(), inputs, targets, micro_batch)
        folder = self.run.inside / "faults" / f"{self.trainer.done + 1:08d}-batch-{number}"
        facts = {"error": problem, "fault": fault_to_json(fault), "micro_batch": micro_batch, **self._surroundings()}
        save_bundle(folder, self.model, inputs, targets, facts)
        where = "though each number is finite when that batch is run again" if fault is None else f"first in {fault}"
        text = f"{problem}, {where}\nsee it again: normscope replay {folder}"
        if fault is not None and fault.when == "weights":
            number = self.trainer.last_batch()  # the one that made them so
        if self.config.on_nan == "stop" or self.rewinds.count == MOST_REWINDS or number < 0:
            self.metrics.see(Noticed(self.trainer.done, text))
            self.metrics.see(Finished(self.trainer.done, f"stopped: {problem}", self._elapsed()))
            saved = "nothing was saved yet" if self.run.checkpoints.last() is None else "what was saved before is whole"
            times = self.rewinds.count
            many = f"the run went back {times} times, and it came again\n" if times else ""
            raise NonFiniteError(f"{text}\n{many}fix: {_ADVICE}; {saved}") from error
        self._go_back(number, text)

    def _go_back(self, bad_batch: int, problem: str) -> None:
        """To the last checkpoint; or to the one before, past all that was learnt from since, if the last is no good."""
        last = self.run.checkpoints.last()
        step = self.rewinds.back_to(self.run.checkpoints.steps(), self.trainer.done + 1)
        self.begin(step, [*self.trainer.passed_over, bad_batch])
        words = f"batch {bad_batch} is passed over"
        if step != last:
            first = self.trainer.next_batch
            self.trainer.passed_over = sorted({*self.trainer.passed_over, *range(first, bad_batch)})
            words = f"batches {first} to {bad_batch} are passed over, for it came again and again from step {last}"
        self.audience.tell_for_good(Noticed(self.trainer.done, f"{problem}\nback at step {self.trainer.done}; {words}"))

    def _tell_start(self) -> None:
        facts = {
            "model": describe_model(config_to_json(self.run.config.model)),
            "device": str(self.device),
            "precision": f"{str(self.precision.dtype).removeprefix('torch.')} ({self.precision.why})",
            "threads": str(self.most_threads),
        }
        self.audience.tell_for_good(
            Started(
                self.trainer.done,
                folder=str(self.run.folder),
                steps=self.config.steps,
                parameters=self.model.parameter_count(),
                vocab_size=self.run.config.model.vocab_size,
                batch_tokens=self.config.batch * self.run.config.model.context,
                bytes_per_token=self._bytes_per_token(),
                floor=self.corpus.floor_bits_per_byte,
                facts=facts,
            )
        )
        notices = [] if self.trainer.done else list(self.corpus.notices)
        notices += opening_notices(self.trainer.done, self.dropped, self.missing_text, self.changes, self.device)
        for notice in notices:
            self.audience.tell_for_good(Noticed(self.trainer.done, notice))

    def _bytes_per_token(self) -> float:
        held_out = self.corpus.record.validation
        return held_out.bytes / held_out.tokens

    def _surroundings(self) -> dict[str, str]:
        return surroundings(self.device, self.precision.dtype, self.most_threads)

    def _as_if_here(self, before: Mapping[str, str]) -> Mapping[str, str]:
        """The surroundings of a checkpoint, with this run's number of threads if that makes no difference."""
        threads = before.get("threads", "")
        if threads == str(self.most_threads) or not self.can_adapt or not threads.isdecimal():
            return before
        if not 0 < int(threads) <= MOST_THREADS_TRIED * usable_cores() or not self.keeps_bits(int(threads)):
            return before
        return {**before, "threads": str(self.most_threads)}

    def _elapsed(self) -> float:
        return time.perf_counter() - self.clock
