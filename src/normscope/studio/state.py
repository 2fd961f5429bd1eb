"""What the server holds between requests: the runs folder, the jobs it started, and loaded models."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from normscope.data.tokenizers import Tokenizer
from normscope.errors import ConfigError
from normscope.lab.results.outcome import DEFAULT_FOLDER
from normscope.models.gpt import GPT
from normscope.runs.run import Run, is_run
from normscope.studio.jobs import Jobs

MAX_MODELS = 2
"""Models kept in memory: two can be compared side by side."""
UPLOADS = "uploads"
"""Folder in the runs folder with the texts that the page uploaded."""


@dataclass
class Studio:
    """The state of the server.

    Args:
        runs: Folder of the runs. Requests name runs in it, never paths.
        lab: Folder of the lab's results.
    """

    runs: Path
    lab: Path = DEFAULT_FOLDER
    jobs: Jobs = field(default_factory=Jobs)
    _models: OrderedDict[tuple[Path, int], tuple[GPT, Tokenizer]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run_folder(self, name: str) -> Path:
        """The folder of a run, by its name in the list of runs."""
        known = {path.name: path for path in self.run_folders()}
        if name not in known:
            raise ConfigError(f"there is no run {name!r}\nfix: choose one of the list")
        return known[name]

    def run_names(self) -> list[str]:
        """The names of all runs."""
        return [path.name for path in self.run_folders()]

    def load(self, name: str, checkpoint: str | int = "best") -> tuple[GPT, Tokenizer]:
        """The model of a run and its tokenizer; the last few stay in memory."""
        run = Run.open(self.run_folder(name))
        step = run.checkpoints.resolve(checkpoint) if run.checkpoints.last() is not None else -1
        with self._lock:
            key = (run.folder, step)
            if key not in self._models:
                model, _ = run.load_model(checkpoint)
                self._models[key] = model, run.tokenizer()
            self._models.move_to_end(key)
            while len(self._models) > MAX_MODELS:
                self._models.popitem(last=False)
            return self._models[key]

    def close(self) -> None:
        """Stop what the page started: training saves a checkpoint first."""
        self.jobs.stop_all()

    def run_folders(self) -> list[Path]:
        """The folders of all runs. Links are left out: they may lead anywhere."""
        if not self.runs.is_dir():
            return []
        return sorted(path for path in self.runs.iterdir() if not path.is_symlink() and is_run(path))
