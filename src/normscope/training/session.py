"""A run in progress: its model, data, position, metrics and observers.

A checkpoint holds everything the next step depends on, so a session can start from any checkpoint and reach the same
bits as one that was never interrupted.
"""

import os
import time
from collections.abc import Mapping, Sequence

import msgspec
import torch
from msgspec.structs import replace

from normscope.data.packed_batches import training_batches
from normscope.data.split import PARTS
from normscope.errors import ConfigError
from normscope.ops.kernel_mode import select_backend
from normscope.ops.numba_loader import kernels_available
from normscope.runs.config import check_same_config
from normscope.runs.events import CheckpointEvent, Observer, RunEvent
from normscope.runs.metrics_file import MetricsFile, check_metrics, metrics_checksum
from normscope.runs.run import Run, check_sources_unchanged
from normscope.runs.xray_snapshots import UpdateTracker
from normscope.runtime.devices import resolve_device
from normscope.runtime.machine_load import usable_cores
from normscope.runtime.memory import keep_freed_memory
from normscope.runtime.precision import choose_precision
from normscope.runtime.ranks import ALONE, Ranks
from normscope.runtime.rng import seed_rank
from normscope.training.config import TrainConfig
from normscope.training.trainer import Trainer

MAX_THREADS_PER_CORE = 4
"""Upper limit, per core, of a checkpoint's thread count that is tried for bitwise equality on resume."""


class EventBus:
    """Sends each event to metrics.jsonl and to all observers.

    Args:
        metrics: The metrics file; truncated on a rollback. None on all ranks but the first, which are silent.
        observers: Displays and trackers.
    """

    def __init__(self, metrics: MetricsFile | None, observers: Sequence[Observer]) -> None:
        self.metrics = metrics
        self._observers = [] if metrics is None else list(observers)
        self._lasting: list[RunEvent] = []
        self.disconnected = False
        """Whether an observer's output pipe was closed."""

    def emit(self, event: RunEvent) -> None:
        for observer in self._observers if self.metrics is None else (self.metrics, *self._observers):
            try:
                observer.on_event(event)
            except BrokenPipeError:
                self.disconnected = True

    def emit_to_observers(self, event: RunEvent) -> None:
        """Send an event to the observers only: it describes the moment and isn't part of the run's history."""
        for observer in self._observers:
            observer.on_event(event)

    def emit_persistent(self, event: RunEvent) -> None:
        """Send an event that a rollback must keep in metrics.jsonl, such as a start or a notice."""
        self._lasting.append(event)
        self.emit(event)

    def roll_back(self, step: int, keep_bytes: int, checkpoint: str | None) -> None:
        """Truncate metrics.jsonl to its size at a checkpoint, then rewrite that checkpoint's and all lasting events."""
        if self.metrics is None:
            return
        self.metrics.truncate(keep_bytes)
        if checkpoint is not None:
            self.metrics.on_event(CheckpointEvent(step, checkpoint))
        self._lasting = [replace(event, step=min(event.step, step)) for event in self._lasting]
        for event in self._lasting:
            if event.step == step:  # earlier ones were not truncated
                self.metrics.on_event(event)


class TrainingSession:
    """The state of a run in progress. `begin` builds it on a start, a resume or a rollback.

    Args:
        run: An open run, locked by rank 0.
        metrics: Its metrics file on rank 0, otherwise None.
        observers: Displays and trackers.
        ranks: The processes that train the run.
        config: The training configuration, if it isn't the run's own.
    """

    def __init__(
        self,
        run: Run,
        metrics: MetricsFile | None,
        observers: Sequence[Observer],
        ranks: Ranks = ALONE,
        config: TrainConfig | None = None,
    ) -> None:
        keep_freed_memory()
        self.ranks = ranks
        self.run, self.config, self.context = run, config or run.config.train, run.config.model.context
        self.device = resolve_device(self.config.device)
        self.precision = choose_precision(self.config.precision, self.device)
        self.autocast = self.precision.autocast(self.device)
        self.max_threads, self.environment_changes, self.has_other_rng = torch.get_num_threads(), list[str](), False
        self.rank_differences = rank_differences(self.environment(), ranks)
        with ranks.fail_together("the corpus is damaged"):  # the ranks of each machine verify a part each
            self.corpus = run.corpus(verify=PARTS[ranks.local_rank :: ranks.local_size])
        self.missing_text = check_sources_unchanged(self.corpus)
        self.batches = training_batches(self.corpus, self.context, self.config.batch, self.config.seed)
        self.metrics, self.events = metrics, EventBus(metrics, observers)
        self.dropped = list[int]()

    def begin(self, step: int | None, skipped_batches: Sequence[int] = ()) -> None:
        """Restore the checkpoint of a step; None, or an unsaved step 0, is the start of the run."""
        torch.manual_seed(self.config.seed)
        self.model = self.run.initial_model(self.device)
        if not self.ranks.is_main:  # which draws what a process alone would
            seed_rank(self.config.seed, 0, self.ranks.rank)
        self.trainer = Trainer(self.model, self.config, self.batches, self.autocast, self.ranks)
        self.trainer.skipped_batches = list(skipped_batches)
        self.best: float | None = None
        self.train_loss: float | None = None
        self.overfitting: str | None = None
        self.update_tracker: UpdateTracker | None = None
        checkpoints, seconds, metrics_bytes, path = self.run.checkpoints, 0.0, 0, None
        is_saved = step is not None and (step != 0 or step in checkpoints.steps())
        step = self.ranks.broadcast(step if is_saved else None)
        if step is not None:
            seconds, metrics_bytes = self._restore(step)
            path = str(checkpoints.path(step))
        self.trainer.warm_up_reducer()
        self.ranks.barrier()  # before rank 0 deletes what others may be reading
        if self.ranks.is_main:
            self.dropped = [later for later in checkpoints.steps() if later > self.step]
            checkpoints.drop_after(self.step)
            self.run.xray_snapshots.drop_after(self.step)
        self.reported_findings = self.run.xray_snapshots.findings_before(self.step) if self.config.xray_every else set()
        self.events.roll_back(self.step, metrics_bytes, path)
        self._start = time.perf_counter() - seconds

    def _restore(self, step: int) -> tuple[float, int]:
        """Load a checkpoint, after checking that it fits; returns its elapsed seconds and its size of metrics.jsonl."""
        checkpoints, extension = self.run.checkpoints, self.run.extension
        with checkpoints.with_alternatives(step):
            state = checkpoints.state(step)
            check_same_config(self.run.config, state.config, extension.before if extension else ())
        saved_device = state.environment.get("device", self.device.type).partition(":")[0]
        expected = self.trainer.expected_tensors(step, state.ranks, saved_device)
        tensors = checkpoints.tensors(step, expected, self.trainer.own_tensors(step), self.ranks)
        if self.metrics is not None:
            check_metrics(self.metrics.path, state.metrics_bytes, state.metrics_sha256)
        self.trainer.restore(tensors, msgspec.to_builtins(state))
        self.best = state.best
        before = self._with_equivalent_threads(state.environment)
        self.environment_changes = environment_changes(before, self.environment())
        self.has_other_rng = state.ranks != self.ranks.size or saved_device != self.device.type
        return state.seconds, state.metrics_bytes

    def save(self) -> None:
        """Save a checkpoint of the current step, unless there is one."""
        if self.ranks.broadcast(self.run.checkpoints.last() if self.ranks.is_main else None) == self.step:
            return
        tensors, state = self.trainer.state()
        if self.metrics is not None:
            self.metrics.sync()
            state |= {
                "config": self.run.config.to_json(),
                "best": self.best,
                "seconds": self.elapsed,
                "metrics_bytes": self.metrics_bytes,
                "metrics_sha256": metrics_checksum(self.metrics.path, self.metrics_bytes),
                "environment": self.environment(),
                "ranks": self.ranks.size,
            }
        self.run.checkpoints.save(self.step, tensors, state, self.ranks)
        self.events.emit(CheckpointEvent(self.step, str(self.run.checkpoints.path(self.step))))

    def mark_metrics(self) -> None:
        """Note the size of metrics.jsonl before the tasks of a step, whose events a resumed run emits again."""
        self.metrics_bytes = 0 if self.metrics is None else self.metrics.size()

    @property
    def step(self) -> int:
        """Number of steps done."""
        return self.trainer.steps_done

    @property
    def elapsed(self) -> float:
        """Seconds of training, including those before the checkpoint it resumed from."""
        return time.perf_counter() - self._start

    @property
    def bytes_per_token(self) -> float:
        """Mean length of a token in the validation text."""
        return self.corpus.record.validation.bytes_per_token

    @property
    def can_adapt_threads(self) -> bool:
        """Whether the number of threads may change during the run; compiled code has it built in.

        Ranks share the cores among themselves, and one that changed alone would compute other bits.
        """
        return self.device.type == "cpu" and not self.config.compile and self.ranks.size == 1

    @property
    def can_track_updates(self) -> bool:
        """Whether this process updates all parameters itself, so that it sees how much they change."""
        return self.ranks.size == 1

    @property
    def has_other_masks(self) -> bool:
        """Whether the run has dropout, whose masks differ since it was resumed by other ranks or on another device."""
        return self.has_other_rng and (self.run.config.model.dropout > 0 or self.config.lora_dropout > 0)

    def is_bitwise_equal(self, threads: int) -> bool:
        """Whether a step with this many threads is bitwise identical to one with all threads."""
        return self.trainer.is_bitwise_equal(threads, self.max_threads)

    def environment(self) -> dict[str, str]:
        """The settings that affect bitwise reproducibility."""
        found = environment(self.device, self.precision.dtype, self.max_threads) | {"ranks": str(self.ranks.size)}
        return found if self.ranks.size == 1 else found | {"parallel": self.config.parallel}

    def _with_equivalent_threads(self, before: Mapping[str, str]) -> Mapping[str, str]:
        """A checkpoint's environment, with this run's thread count if the bits are the same."""
        threads = before.get("threads", "")
        if threads == str(self.max_threads) or not self.can_adapt_threads or not threads.isdecimal():
            return before
        if not 0 < int(threads) <= MAX_THREADS_PER_CORE * usable_cores() or not self.is_bitwise_equal(int(threads)):
            return before
        return {**before, "threads": str(self.max_threads)}


def environment(device: torch.device, dtype: torch.dtype, threads: int) -> dict[str, str]:
    """Describe the current environment, to be stored in a checkpoint.

    Args:
        device, dtype: Device and dtype of matrix products.
        threads: Number of threads on an idle machine. Using fewer while the machine is busy keeps the bits.
    """
    fused = device.type == "cpu" and select_backend() == "fused" and kernels_available()
    return {
        "device": str(device),
        "precision": str(dtype).removeprefix("torch."),
        "threads": str(threads),
        "kernels": "fused" if fused else "reference",
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkl_cbwr": os.environ.get("MKL_CBWR", "default") if torch.backends.mkl.is_available() else "default",
    }


def rank_differences(environment: Mapping[str, str], ranks: Ranks) -> list[str]:
    """How the ranks' environments differ in the last bits; raises if they compute with other devices or dtypes."""
    if different := ranks.differences({name: environment[name] for name in ("device", "precision")}):
        raise ConfigError(
            f"the ranks do not compute alike: {'; '.join(different)}\n"
            f"fix: see `normscope doctor` on each machine, or give --device and --precision"
        )
    return ranks.differences({name: environment[name] for name in ("kernels", "cpu_capability", "mkl_cbwr")})


def environment_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describe what differs; names missing from `before` are ignored.

    >>> environment_changes({"threads": "2", "torch": "2.13"}, {"threads": "1", "torch": "2.13", "device": "cpu"})
    ['threads was 2 and is 1']
    """
    return [
        f"{name} was {before[name]} and is {value}" for name, value in now.items() if before.get(name, value) != value
    ]
