"""Where the figures of trials are kept: a file each, so that a run that was interrupted goes on where it was."""

import dataclasses
import json
from pathlib import Path

from normscope.errors import ConfigError
from normscope.files import is_altered, make_folder, signed, write_atomically
from normscope.lab.source import LIBRARIES, made_of
from normscope.lab.trial import Done, Trial


class Store:
    """A folder of finished trials.

    Args:
        folder: the lab's; trials are kept in `trials` below it, texts in `texts`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.trials = make_folder(self.folder / "trials")
        self.texts = self.folder / "texts"

    def find(self, trial: Trial) -> Done | None:
        """What the trial gave when it was run before; None if it never was, or if its file is damaged."""
        try:
            content = json.loads(self._path(trial).read_text(encoding="utf-8"))
            if is_altered(content) or content["settings"] != json.loads(json.dumps(trial.settings)):
                return None
            return Done(content["figures"], content["seconds"], content["made_of"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # it is run again, which is never wrong

    def keep(self, trial: Trial, done: Done) -> None:
        """Keep what it gave; refused if it was not run with the code that it would be found by."""
        if done.made_of != made_of(trial.module):
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
        write_atomically(self._path(trial), json.dumps(signed(content)) + "\n")

    def forget(self, trial: Trial) -> None:
        """Let a trial be run again."""
        self._path(trial).unlink(missing_ok=True)

    def _path(self, trial: Trial) -> Path:
        return self.trials / f"{trial.key}.json"
