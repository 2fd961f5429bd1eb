"""A trial: one run of one variant with one seed, keyed by everything its metrics depend on; and the cache of trials."""

import importlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from normscope.checks import to_python_number
from normscope.errors import ConfigError, FileError, NonFiniteError
from normscope.lab.claim import Measure, Settings
from normscope.lab.running.code_version import LIBRARIES, code_digest, digest, processor, snapshot
from normscope.lab.trials.text_sources import text_folder
from normscope.storage.files import make_folder, with_checksum, write_atomically
from normscope.storage.json_files import LARGE_FILE_BYTES, read_json


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
    value = to_python_number(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise NonFiniteError(f"{name} is {value}")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(one, name) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_plain(one, name) for one in value]
    raise NonFiniteError(f"{name} is a {type(value).__name__}, expected numbers, strings or lists of these")


class Store:
    """A folder of finished trials, one file each, so that an interrupted run resumes where it stopped.

    Args:
        folder: of the lab, with the subfolders `trials` and `texts`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.trials = make_folder(self.folder / "trials")
        self.texts = self.folder / "texts"

    def load(self, trial: LabTrial) -> TrialResult | None:
        """Return the result of an earlier run; None if there is none or its file is damaged."""
        path, fix = self._path(trial), "run the trial again"
        try:
            return read_json(path, TrialResult, fix=fix, max_bytes=LARGE_FILE_BYTES, checksum=True)
        except FileError:
            return None  # the trial runs again

    def save(self, trial: LabTrial, result: TrialResult) -> None:
        """Store a result; refuse one that was computed by other code than it would be looked up by."""
        if result.code_digest != code_digest(trial.module):
            raise ConfigError(
                f"{trial.measure} ran with other code, or other versions of {', '.join(LIBRARIES)}, than the lab "
                "started with, so its metrics are discarded\nfix: run the same command again without editing files "
                "during the run; on a cluster, install the same versions on every machine"
            )
        content = {"measure": trial.measure, "settings": trial.settings, "seed": trial.seed, **asdict(result)}
        write_atomically(self._path(trial), json.dumps(with_checksum(content)) + "\n")

    def delete(self, trial: LabTrial) -> None:
        """Delete a result, so that the trial runs again."""
        self._path(trial).unlink(missing_ok=True)

    def _path(self, trial: LabTrial) -> Path:
        return self.trials / f"{trial.key}.json"
