"""What the server holds between requests: the runs folder, the jobs it started, and loaded models."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from normscope.data.tokenizers import Tokenizer
from normscope.errors import ConfigError
from normscope.lab.results.folders import DEFAULT_FOLDER
from normscope.models.gpt import GPT
from normscope.runs.list_runs import RunSummary, last_activity
from normscope.runs.run import Run, is_run
from normscope.studio.jobs import Jobs
from normscope.studio.xray_records import XrayRecords

MAX_MODELS = 2
"""Models kept in memory: two can be compared side by side."""
UPLOADS = "uploads"
"""Folder in the runs folder with the texts that the page uploaded."""


@dataclass
class StudioState:
    """The state of the server.

    Args:
        runs: Folder of the runs. Requests name runs in it, never paths.
        lab: Folder of the lab's results.
    """

    runs: Path
    lab: Path = DEFAULT_FOLDER
    jobs: Jobs = field(default_factory=Jobs)
    xrays: XrayRecords = field(default_factory=XrayRecords)
    summaries: dict[Path, tuple[object, RunSummary]] = field(default_factory=dict)
    """Runs as the list shows them, each with the version of the files that it was read from."""
    rng_lock: threading.RLock = field(default_factory=threading.RLock)
    """Held by requests that seed torch's random numbers or restore them: all threads share one generator."""
    _models: OrderedDict[tuple[Path, int, int], tuple[GPT, Tokenizer]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run_folder(self, name: str) -> Path:
        """The folder of a run, by its name in the list of runs."""
        known = {path.name: path for path in self.run_folders()}
        if name not in known:
            raise ConfigError(f"there is no run {name!r}\nfix: choose one of the list")
        return known[name]

    def run_names(self) -> list[str]:
        """The names of all runs, the newest first."""
        return [path.name for path in self.newest_folders()]

    def load(self, name: str, checkpoint: str | int = "best") -> tuple[GPT, Tokenizer]:
        """The model of a run and its tokenizer; the last few stay in memory."""
        run = Run.open(self.run_folder(name))
        step = run.checkpoints.resolve(checkpoint) if run.checkpoints.last() is not None else -1
        found = self._loaded(_key(run, step))
        if found is not None:
            return found
        with self.rng_lock:  # building a model takes random numbers
            found = self._loaded(_key(run, step))  # another request may have loaded it meanwhile
            if found is not None:
                return found
            model, step = run.load_model(checkpoint)  # of a later step, if training replaced the checkpoint meanwhile
            found = model, run.tokenizer()
            with self._lock:
                self._models[_key(run, step)] = found
                while len(self._models) > MAX_MODELS:
                    self._models.popitem(last=False)
            return found

    def _loaded(self, key: tuple[Path, int, int]) -> tuple[GPT, Tokenizer] | None:
        with self._lock:
            if key in self._models:
                self._models.move_to_end(key)
            return self._models.get(key)

    def close(self) -> None:
        """Stop what the page started: training saves a checkpoint first."""
        self.jobs.stop_all()

    def run_folders(self) -> list[Path]:
        """The folders of all runs, without links, which may lead anywhere, and names that are not UTF-8."""
        if not self.runs.is_dir():
            return []
        found = (path for path in self.runs.iterdir() if _is_unicode(path.name) and not path.is_symlink())
        return sorted(path for path in found if is_run(path))

    def newest_folders(self) -> list[Path]:
        """The folders of all runs, by their last activity: where the page chooses a run, it chooses the first."""
        return sorted(self.run_folders(), key=last_activity, reverse=True)


def _key(run: Run, step: int) -> tuple[Path, int, int]:
    """What identifies a checkpoint; a run that was deleted and trained again has the same steps, but other times."""
    path = run.checkpoints.path(step)
    return run.folder, step, path.stat().st_mtime_ns if path.exists() else 0


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
