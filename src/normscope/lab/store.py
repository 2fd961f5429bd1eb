"""Where the figures of trials are kept: a file each, so that a run that was interrupted goes on where it was."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from normscope.errors import ConfigError, FileError
from normscope.lab.code_version import LIBRARIES, code_digest
from normscope.lab.trial import LabTrial, TrialResult
from normscope.storage.files import make_folder, with_checksum, write_atomically
from normscope.storage.json_files import LARGE_FILE_BYTES, StrictStruct, convert, read_checksummed_json


class _Kept(StrictStruct):
    measure: str
    settings: dict[str, Any]
    seed: int
    metrics: dict[str, Any]
    seconds: float
    code_digest: str


class Store:
    """A folder of finished trials.

    Args:
        folder: the lab's; trials are kept in `trials` below it, texts in `texts`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.trials = make_folder(self.folder / "trials")
        self.texts = self.folder / "texts"

    def find(self, trial: LabTrial) -> TrialResult | None:
        """What the trial gave when it was run before; None if it never was, or if its file is damaged."""
        path, fix = self._path(trial), "run the trial again"
        try:
            kept = convert(
                read_checksummed_json(path, fix=fix, max_bytes=LARGE_FILE_BYTES), _Kept, name=str(path), fix=fix
            )
        except FileError:
            return None  # it is run again, which is never wrong
        if kept.settings != json.loads(json.dumps(trial.settings)):
            return None
        return TrialResult(kept.metrics, kept.seconds, kept.code_digest)

    def keep(self, trial: LabTrial, done: TrialResult) -> None:
        """Keep what it gave; refused if it was not run with the code that it would be found by."""
        if done.code_digest != code_digest(trial.module):
            raise ConfigError(
                f"{trial.measure} was run with other code, or other versions of {', '.join(LIBRARIES)}, than the lab "
                "began with, so its figures are not kept\nfix: run the same command again, and edit no file "
                "meanwhile; on a cluster, install the same versions on every machine"
            )
        content = {
            "measure": trial.measure,
            "settings": trial.settings,
            "seed": trial.seed,
            **dataclasses.asdict(done),
        }
        write_atomically(self._path(trial), json.dumps(with_checksum(content)) + "\n")

    def forget(self, trial: LabTrial) -> None:
        """Let a trial be run again."""
        self._path(trial).unlink(missing_ok=True)

    def _path(self, trial: LabTrial) -> Path:
        return self.trials / f"{trial.key}.json"
