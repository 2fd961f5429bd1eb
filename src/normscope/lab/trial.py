"""A trial: one run of one variant with one seed. Its key names everything that its figures depend on."""

import importlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.lab.claim import Measure, Settings
from normscope.lab.code_version import code_digest, digest, processor, snapshot
from normscope.lab.trial_values import to_plain_metrics
from normscope.lab.trials.text_sources import text_folder


@dataclass(frozen=True)
class LabTrial:
    """What is to be run.

    Args:
        measure: the function, as `module:name`.
        settings: what it is told.
        seed: of chance.
        alone: nothing else may run at the same time, because it measures time.
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
        """The same for the same figures: of code, libraries, settings and seed; and of the processor for times."""
        where = processor() if self.alone else None
        return digest([code_digest(self.module), where, self.measure, self.settings, self.seed])

    @property
    def in_words(self) -> str:
        """Which one it is, for messages."""
        return f"seed {self.seed} of {self.measure} with {json.dumps(self.settings)}"


@dataclass(frozen=True)
class TrialResult:
    """What a trial gave.

    Args:
        figures: by name.
        seconds: of a core that it took, however busy the machine was.
        code_digest: a digest of the code and the libraries that it was run with.
    """

    metrics: Mapping[str, Any]
    seconds: float
    code_digest: str


def function_path(measure: Measure) -> str:
    """A function as `module:name`, by which another process finds it.

    >>> function_path(run_trial)
    'normscope.lab.trial:run_trial'
    """
    return f"{measure.__module__}:{measure.__qualname__}"


def run_trial(trial: LabTrial, texts: Path | None = None) -> TrialResult:
    """Run it here and now, on one core: the figures must not depend on how many others run beside it."""
    code = snapshot()  # before anything is loaded
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
