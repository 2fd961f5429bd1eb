"""The cache of trial results, one file each, so that an interrupted run resumes where it stopped."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from normscope.errors import ConfigError, FileError
from normscope.lab.running.code_version import LIBRARIES, code_digest
from normscope.lab.running.trial import LabTrial, TrialResult
from normscope.storage.files import make_folder, with_checksum, write_atomically
from normscope.storage.json_files import LARGE_FILE_BYTES, StrictStruct, read_json


class _StoredTrial(StrictStruct):
    measure: str
    settings: dict[str, Any]
    seed: int
    metrics: dict[str, Any]
    seconds: float
    code_digest: str


class Store:
    """A folder of finished trials.

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
            stored = read_json(path, _StoredTrial, fix=fix, max_bytes=LARGE_FILE_BYTES, checksum=True)
        except FileError:
            return None  # the trial runs again
        if stored.settings != json.loads(json.dumps(trial.settings)):
            return None
        return TrialResult(stored.metrics, stored.seconds, stored.code_digest)

    def save(self, trial: LabTrial, result: TrialResult) -> None:
        """Store a result; refuse one that was computed by other code than it would be looked up by."""
        if result.code_digest != code_digest(trial.module):
            raise ConfigError(
                f"{trial.measure} ran with other code, or other versions of {', '.join(LIBRARIES)}, than the lab "
                "started with, so its metrics are discarded\nfix: run the same command again without editing files "
                "meanwhile; on a cluster, install the same versions on every machine"
            )
        content = {
            "measure": trial.measure,
            "settings": trial.settings,
            "seed": trial.seed,
            **dataclasses.asdict(result),
        }
        write_atomically(self._path(trial), json.dumps(with_checksum(content)) + "\n")

    def delete(self, trial: LabTrial) -> None:
        """Delete a result, so that the trial runs again."""
        self._path(trial).unlink(missing_ok=True)

    def _path(self, trial: LabTrial) -> Path:
        return self.trials / f"{trial.key}.json"
