"""A run is a folder: config.json, tokenizer.json, the tokens, metrics.jsonl, checkpoints and report.html."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope._version import __version__
from normscope.checks import as_path
from normscope.data.corpus import TOKENIZER_NAME, Corpus, open_corpus
from normscope.data.fingerprints import changed_sources, sha256_of
from normscope.data.record import Sha256
from normscope.data.tokenizers import Tokenizer, load_tokenizer
from normscope.errors import CheckpointError, ConfigError, FileError, NormscopeError
from normscope.files import AtomicFile, make_folder, write_atomically
from normscope.json_files import Strict, convert, read_json
from normscope.models.as_json import config_from_json, config_to_json
from normscope.models.gpt import GPT, GPTConfig
from normscope.train.checkpoints import Checkpoints
from normscope.train.config import TrainConfig
from normscope.train.devices import resolve_device
from normscope.train.events import Finished
from normscope.train.lock import is_locked
from normscope.train.looks import Looks
from normscope.train.observers.metrics_file import read_metrics

_FORMAT = 1


class _CorpusOfRun(Strict):
    folder: str
    train: Sha256
    validation: Sha256
    tokenizer: Sha256


class _ConfigFile(Strict):
    """What config.json holds; the settings of model and training have checks of their own."""

    format: int
    normscope: str
    corpus: _CorpusOfRun
    model: dict[str, Any]
    train: dict[str, Any]
    prompt: str


@dataclass(frozen=True)
class RunConfig:
    """All that decides what comes out of a run.

    Args:
        corpus: the prepared folder, relative to the run's or absolute.
        fingerprint: what the tokens were when the run began.
        model, train: the settings of the model and of its training.
        prompt: what samples during the training begin with.
    """

    corpus: str
    fingerprint: Mapping[str, str]
    model: GPTConfig
    train: TrainConfig
    prompt: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "normscope": __version__,
            "corpus": {"folder": self.corpus, **self.fingerprint},
            "model": config_to_json(self.model),
            "train": self.train.to_json(),
            "prompt": self.prompt,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RunConfig":
        if content.get("format") != _FORMAT:
            raise ConfigError(f"a run's config has format {_FORMAT}, but this one {content.get('format')!r}")
        file = convert(content, _ConfigFile, name="it", fix="put it back as it was", error=ConfigError)
        return cls(
            corpus=file.corpus.folder,
            fingerprint={name: getattr(file.corpus, name) for name in ("train", "validation", "tokenizer")},
            model=config_from_json(file.model),
            train=TrainConfig.from_json(file.train),
            prompt=file.prompt,
        )


class Run:
    """An open run folder.

    Args:
        folder: where it is.
        config: what config.json says.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.folder, self.config = folder, config
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.metrics = folder / "metrics.jsonl"
        self.faults = folder / "faults"
        self.looks = Looks(folder / "xray")

    @classmethod
    def create(cls, folder: Path, config: RunConfig, tokenizer: Path) -> "Run":
        """Make a new run in a folder that has none, with a copy of its tokenizer; the tokens may be there already."""
        refuse_run(folder)
        make_folder(folder)
        with AtomicFile(folder / TOKENIZER_NAME) as file:
            file.write(tokenizer.read_bytes())
        write_atomically(folder / "config.json", json.dumps(config.to_json(), indent=1))
        return cls(folder, config)

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        folder = as_path(folder, "a run")
        path = folder / "config.json"
        if not path.is_file():
            raise FileError(f"{folder} is not a run: it has no config.json\nfix: name a folder that `train` made")
        fix = f"put it back as it was; {folder}/checkpoints/*/state.json holds it too"
        content = read_json(path, dict[str, Any], fix=fix, error=ConfigError)
        try:
            return cls(folder, RunConfig.from_json(content))
        except NormscopeError as error:
            problem = str(error)
            problem += "" if "\nfix: " in problem else f"\nfix: {fix}"
            raise ConfigError(f"{path} is not the config of a run: {problem}") from error

    def corpus(self, *, verify: bool = False) -> Corpus:
        """The tokens, refused if they are not those that the run began with."""
        place = self.folder / self.config.corpus
        if not place.is_dir():
            raise FileError(
                f"the tokens that {self.folder} learns from are not in {place} any more\n"
                f"fix: put them back there; `normscope sample` and `chat` go without"
            )
        corpus = open_corpus(place, verify=verify)
        now = fingerprint(corpus)
        changed = [name for name, value in self.config.fingerprint.items() if now.get(name) != value]
        if changed:
            raise CheckpointError(
                f"the corpus in {place} is not the one that this run began with: "
                f"{', '.join(changed)} changed\nfix: put the old one back, or start a new run"
            )
        return corpus

    def is_done(self) -> bool:
        """Whether all steps were taken, and what was due after the last of them was done too."""
        if self.checkpoints.last() != self.config.train.steps or not self.metrics.is_file():
            return False
        *_, last = [{}, *read_metrics(self.metrics)]
        return last.get("kind") == Finished.kind and last.get("reason") == "done"

    def tokenizer(self) -> Tokenizer:
        """The run's own copy: it reads and writes text without the corpus."""
        path = self.folder / TOKENIZER_NAME
        if not path.is_file() or sha256_of(path) != self.config.fingerprint.get("tokenizer"):
            problem = "is missing" if not path.is_file() else "is not the one that this run began with"
            raise CheckpointError(f"{path} {problem}\nfix: copy it from {self.folder / self.config.corpus}")
        return load_tokenizer(path)

    def load_model(self, which: str | int = "best", device: str = "cpu") -> tuple[GPT, int]:
        """The model of the best, the last or any saved step, in eval mode, and the step."""
        where, step = resolve_device(device), self._step(which)
        try:
            tensors, _ = self.checkpoints.load(step)
        except CheckpointError:
            if self._step(which) == step:
                raise
            step = self._step(which)  # a training process saved a newer one, and dropped the one that was read
            tensors, _ = self.checkpoints.load(step)
        model = GPT(self.config.model)
        model.load_state_dict(tensors["model"])
        return model.to(where).eval(), step

    def _step(self, which: str | int) -> int:
        last = self.checkpoints.last()
        if last is None:
            raise CheckpointError(f"{self.folder} has no checkpoint yet{self._why_none()}")
        if which == "best":
            best = self.checkpoints.best()
            return last if best is None else best
        if which == "last":
            return last
        if str(which).isdecimal() and int(which) in self.checkpoints.steps():
            return int(which)
        there = ", ".join(map(str, self.checkpoints.steps()))
        raise CheckpointError(f"{self.folder} has no checkpoint {str(which)!r}\nfix: choose one of best, last, {there}")

    def _why_none(self) -> str:
        """Why nothing was saved so far, and what to do."""
        if is_locked(self.folder):
            train = self.config.train
            first = min(every or train.steps for every in (train.save_every, train.evaluate_every))
            return (
                f": it is being trained now\nfix: wait for step {min(first, train.steps)}, at which the first is saved"
            )
        if self.faults.is_dir():
            return ": before it, a number was not finite\nfix: a new run with a lower --matrix-rate and --rate"
        return f"\nfix: normscope resume {self.folder}"


def fingerprint(corpus: Corpus) -> dict[str, str]:
    """The checksums of what a run learns from."""
    record = corpus.record
    return {
        "train": record.train.sha256,
        "validation": record.validation.sha256,
        "tokenizer": record.tokenizer_sha256,
    }


def is_run(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def refuse_run(folder: Path) -> None:
    if is_run(folder):
        raise FileError(
            f"{folder} holds a run already, and nothing is overwritten\n"
            f"fix: normscope resume {folder}, or another folder with --out"
        )


def refuse_changed_text(corpus: Corpus) -> list[str]:
    """Refuse text that changed since it was read, by name; returns the names of what is missing.

    The tokens are safe in the corpus, so a text that is gone does no harm. One that changed is most likely not what
    its user thinks the run learns from.
    """
    changes = changed_sources(corpus.record.sources)
    changed = [name for name, change in changes.items() if change == "changed"]
    if changed:
        raise CheckpointError(
            f"{', '.join(changed)} changed since this run read it, and the run learns from what it was then\n"
            f"fix: start a new run to learn from what it is now; or put the old text back, or move the new one away, "
            f"to go on as it was"
        )
    return list(changes)


def refuse_other_config(run: Run, saved: Mapping[str, Any]) -> None:
    """Refuse a config that changed since a checkpoint was written, by the names of its settings."""
    changes = list(_differences(saved, run.config.to_json()))
    if changes:
        raise CheckpointError(
            f"config.json is not the one that this run began with: {'; '.join(changes)}\n"
            f"fix: put it back, or start a new run with the new settings"
        )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{name}.")
        elif old != new and (prefix, name) != ("", "normscope"):
            yield f"{prefix}{name} was {old!r} and is {new!r}"
