"""A run is a folder: config.json, tokenizer.json, the tokens, metrics.jsonl, checkpoints and report.html."""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normscope._version import __version__
from normscope.checks import as_path
from normscope.data.corpus import TOKENIZER_NAME, Corpus, open_corpus, part_name
from normscope.data.corpus_record import RECORD_NAME, Sha256
from normscope.data.source_fingerprints import changed_sources
from normscope.data.split import PARTS, CorpusPart
from normscope.data.tokenizers import Tokenizer
from normscope.data.tokenizers.load import parse_tokenizer
from normscope.errors import CheckpointError, ConfigError, DtypeError, FileError, NormscopeError
from normscope.models.config_json import config_from_json, config_to_json
from normscope.models.gpt import GPT, GPTConfig
from normscope.runs.checkpoints import BEST, Checkpoints
from normscope.runs.events import Finished
from normscope.runs.lock import is_locked
from normscope.runs.manifest import MANIFEST, Manifest, read_manifest, read_verified, write_manifest
from normscope.runs.metrics import read_metrics
from normscope.runs.tensor_specs import Spec, specs
from normscope.runs.xray_snapshots import Looks
from normscope.runtime.devices import resolve_device
from normscope.storage.files import make_folder, open_regular
from normscope.storage.json_files import LARGE, Strict, convert, parse_json
from normscope.storage.safe_folder import OwnFolder
from normscope.training.config import TrainConfig

_FORMAT = 2
CONFIG = "config.json"


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
        config_sha256: the checksum of config.json, which every checkpoint is bound to.
    """

    def __init__(self, folder: Path, config: RunConfig, config_sha256: str) -> None:
        self.folder, self.config = folder, config
        self.inside = OwnFolder(folder)
        self.checkpoints = Checkpoints(self.inside / "checkpoints", config_sha256)
        self.metrics = folder / "metrics.jsonl"
        self.faults = folder / "faults"
        self.looks = Looks(self.inside / "xray")

    @classmethod
    def create(cls, folder: Path, config: RunConfig, tokenizer: Path) -> "Run":
        """Make a new run in a folder that has none, with a copy of its tokenizer; the tokens may be there already."""
        refuse_run(folder)
        inside = OwnFolder(make_folder(folder))
        with open_regular(tokenizer) as file:
            inside.write(TOKENIZER_NAME, file.read())
        data = json.dumps(config.to_json(), indent=1, allow_nan=False).encode()
        inside.write(CONFIG, data)
        write_manifest(inside, [CONFIG, TOKENIZER_NAME])  # last: without it the folder is no run yet
        return cls(folder, config, hashlib.sha256(data).hexdigest())

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """The run in a folder, after config.json was checked against the manifest."""
        folder = as_path(folder, "a run")
        data = read_config(folder)
        path, fix = folder / CONFIG, _restore(folder)
        content = parse_json(data, dict[str, Any], name=str(path), fix=fix, error=ConfigError)
        try:
            return cls(folder, RunConfig.from_json(content), hashlib.sha256(data).hexdigest())
        except NormscopeError as error:
            problem = str(error)
            problem += "" if "\nfix: " in problem else f"\nfix: {fix}"
            raise ConfigError(f"{path} is not the config of a run: {problem}") from error

    def corpus(self, *, verify: bool | Collection[CorpusPart] = False) -> Corpus:
        """The tokens, refused if they are not those that the run began with; every byte is read of those to verify."""
        place = self.folder / self.config.corpus
        self._refuse_linked_corpus()
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

    def _refuse_linked_corpus(self) -> None:
        """A corpus elsewhere is the user's own and is only read; of one inside of the run nothing may be a link."""
        parts = Path(self.config.corpus).parts
        if not Path(self.config.corpus).is_absolute() and ".." not in parts:
            inside = OwnFolder(self.folder, *parts)
            for name in (RECORD_NAME, TOKENIZER_NAME, *map(part_name, PARTS)):
                inside.has(name)

    def is_done(self) -> bool:
        """Whether all steps were taken, and what was due after the last of them was done too."""
        if self.checkpoints.last() != self.config.train.steps or not self.inside.has(self.metrics.name):
            return False
        try:
            *_, last = [{}, *read_metrics(self.metrics)]
        except FileError:  # then what was due after the last step is done again, if all before it is whole
            return False
        return last.get("kind") == Finished.kind and last.get("reason") == "done"

    def tokenizer(self) -> Tokenizer:
        """The run's own copy: it reads and writes text without the corpus."""
        path, fix = self.folder / TOKENIZER_NAME, f"copy it from {self.folder / self.config.corpus}"
        if not self.inside.has(TOKENIZER_NAME):
            raise CheckpointError(f"{path} is missing\nfix: {fix}")
        data = self.inside.read(TOKENIZER_NAME, LARGE)
        if hashlib.sha256(data).hexdigest() != self.config.fingerprint["tokenizer"]:
            raise CheckpointError(f"{path} is not the one that this run began with\nfix: {fix}")
        tokenizer = parse_tokenizer(data, path)
        if tokenizer.vocab_size != self.config.model.vocab_size:
            raise CheckpointError(
                f"{path} has {tokenizer.vocab_size} tokens, and the model {self.config.model.vocab_size}\nfix: {fix}"
            )
        return tokenizer

    def load_model(self, which: str | int = "best", device: str = "cpu") -> tuple[GPT, int]:
        """The model of the best, the last or any saved step, in eval mode, and the step."""
        with torch.device("meta"):  # shapes without numbers; refuses sizes that nothing could be built with
            wanted = specs(GPT(self.config.model).state_dict())
        where, step = resolve_device(device), self._step(which)
        try:
            tensors = self._weights(step, wanted)
        except CheckpointError:
            if self._step(which) == step:
                raise
            step = self._step(which)  # a training process saved a newer one, and dropped the one that was read
            tensors = self._weights(step, wanted)
        model = GPT(self.config.model)
        model.load_state_dict(tensors)
        return model.to(where).eval(), step

    def _weights(self, step: int, wanted: Mapping[str, Spec]) -> dict[str, Tensor]:
        with self.checkpoints.explained(step):
            tensors = self.checkpoints.open(step).tensors("model", wanted)
            for name, tensor in tensors.items():
                if not bool(tensor.isfinite().all()):
                    raise CheckpointError(f"{self.checkpoints.path(step)} has numbers in {name} that are not finite")
        return tensors

    def _step(self, which: str | int) -> int:
        last = self.checkpoints.last()
        if last is None:
            raise CheckpointError(f"{self.folder} has no checkpoint yet{self._why_none()}")
        if isinstance(which, bool) or not isinstance(which, str | int):
            raise DtypeError(f"a checkpoint is best, last or the number of a step, but got {which!r:.60}")
        if which == "best":
            return self._best(last)
        if which == "last":
            return last
        if re.fullmatch(r"[0-9]{1,15}", str(which)) and int(which) in self.checkpoints.steps():
            return int(which)
        there = ", ".join(map(str, self.checkpoints.steps()))
        raise CheckpointError(f"{self.folder} has no checkpoint {str(which)!r}\nfix: choose one of best, last, {there}")

    def _best(self, last: int) -> int:
        """The step that is marked as the best; the last one if none is, because there was no validation yet."""
        best, path = self.checkpoints.marked(), self.checkpoints.folder / BEST
        fix = f"--checkpoint last, or another of {', '.join(map(str, self.checkpoints.steps()))}"
        if best is not None and best not in self.checkpoints.steps():
            raise CheckpointError(f"{path} names step {best}, of which there is no checkpoint\nfix: {fix}")
        if not self.checkpoints.has_mark() and self.checkpoints.state(last).best is not None:
            raise CheckpointError(f"{path} is missing, though the run was validated\nfix: {fix}")
        return last if best is None else best

    def _why_none(self) -> str:
        """Why nothing was saved so far, and what to do."""
        if is_locked(self.folder):
            train = self.config.train
            first = min(every or train.steps for every in (train.save_every, train.evaluate_every))
            return (
                f": it is being trained now\nfix: wait for step {min(first, train.steps)}, at which the first is saved"
            )
        if self.inside.has(self.faults.name):
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


def read_config(folder: Path) -> bytes:
    """What config.json holds, after it was checked against the run's manifest."""
    inside = OwnFolder(folder)
    if not folder.is_dir():
        what = "a file" if folder.exists() else "not there"
        raise FileError(f"{folder} is not a run: it is {what}\nfix: name a folder that `train` made")
    if not inside.has(CONFIG):
        raise FileError(f"{folder} is not a run: it has no {CONFIG}\nfix: name a folder that `train` made")
    manifest = read_manifest(inside, _restore(folder))
    try:
        return read_verified(inside, CONFIG, manifest.files, _restore(folder))
    except CheckpointError as error:
        changes = _changed_settings(inside, manifest)
        if not changes:
            raise
        raise CheckpointError(
            f"{folder / CONFIG} is not the one that this run began with: {'; '.join(changes)}\n"
            f"fix: put it back, or start a new run with the new settings"
        ) from error


def _changed_settings(inside: OwnFolder, manifest: Manifest) -> list[str]:
    """What was changed in config.json, as far as it can still be read and the last checkpoint tells what it was."""
    try:
        checkpoints = Checkpoints(inside / "checkpoints", manifest.files[CONFIG].sha256)
        last = checkpoints.last()
        if last is None:
            return []
        now = parse_json(inside.read(CONFIG), dict[str, Any], name=CONFIG, fix="")
        return list(differences(checkpoints.state(last).config, now))[:4]
    except (NormscopeError, KeyError):
        return []


def _restore(folder: Path) -> str:
    return f"put it back as it was, or start a new run; {folder}/checkpoints/*/state.json holds the settings too"


def is_run(folder: Path) -> bool:
    """Whether a run was made there: its manifest is written last."""
    return (folder / CONFIG).is_file() and (folder / MANIFEST).is_file()


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


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The settings that are not the same, in words."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from differences(old, new, f"{prefix}{name}.")
        elif old != new and (prefix, name) != ("", "normscope"):
            yield f"{prefix}{name} was {old!r} and is {new!r}"
