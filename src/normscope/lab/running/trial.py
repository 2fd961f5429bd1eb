"""A trial: one run of one variant with one seed, keyed by everything its metrics depend on."""

import importlib
import json
import math
import numbers
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.errors import NonFiniteError
from normscope.lab.claim import Measure, Settings
from normscope.lab.running.code_version import code_digest, digest, processor, snapshot
from normscope.lab.trials.text_sources import text_folder


@dataclass(frozen=True)
class LabTrial:
    """What to run.

    Args:
        measure: the function, as `module:name`.
        settings: its configuration.
        seed: random seed.
        alone: run nothing else at the same time, because the trial measures time.
    """

    measure: str
    settings: Settings
    seed: int
    alone: bool = False

    @property
    def module(self) -> str:
        return self.measure.partition(":")[0]

    @property
    def key(self) -> str:
        """Cache key: a digest of code, libraries, settings and seed, and of the processor for times."""
        machine = processor() if self.alone else None
        return digest([code_digest(self.module), machine, self.measure, self.settings, self.seed])

    def __str__(self) -> str:
        return f"seed {self.seed} of {self.measure} with {json.dumps(self.settings)}"


@dataclass(frozen=True)
class TrialResult:
    """What a trial measured.

    Args:
        metrics: by name.
        seconds: CPU time, independent of other load.
        code_digest: digest of the code and libraries that ran.
    """

    metrics: Mapping[str, Any]
    seconds: float
    code_digest: str


def function_path(measure: Measure) -> str:
    """Return a function as `module:name`, by which another process can import it.

    >>> function_path(run_trial)
    'normscope.lab.running.trial:run_trial'
    """
    return f"{measure.__module__}:{measure.__qualname__}"


def run_trial(trial: LabTrial, texts: Path | None = None) -> TrialResult:
    """Run a trial in this process on one thread, so that metrics do not depend on the number of workers."""
    code = snapshot()  # before anything is imported
    import torch

    measure = getattr(importlib.import_module(trial.module), trial.measure.partition(":")[2])
    threads = torch.get_num_threads()
    start = time.process_time()
    try:
        torch.set_num_threads(1)
        torch.manual_seed(trial.seed)
        with text_folder(texts):
            metrics = measure(trial.settings, trial.seed)
    finally:
        torch.set_num_threads(threads)
        seconds = time.process_time() - start
        code.note_loaded()
    return TrialResult(to_plain_metrics(metrics, trial.measure), seconds, code_digest(trial.module))


def to_plain_metrics(metrics: Mapping[str, Any], measure: str) -> dict[str, Any]:
    """Convert metrics to JSON values; refuse non-finite numbers by name.

    >>> to_plain_metrics({"loss": 2, "curve": [(1, 0.5)]}, "demo")
    {'loss': 2, 'curve': [[1, 0.5]]}
    """
    return {str(name): _plain(value, f"metric {name} of {measure}") for name, value in metrics.items()}


def _plain(value: Any, name: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise NonFiniteError(f"{name} is {float(value)}")
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one, name) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_plain(one, name) for one in value]
    raise NonFiniteError(f"{name} is a {type(value).__name__}, expected numbers, strings or lists of these")
