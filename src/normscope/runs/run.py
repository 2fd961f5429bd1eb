"""A run folder: config.json, tokenizer.json, tokens, metrics.jsonl, checkpoints and report.html."""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

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
from normscope.runs.checkpoints import BEST_NAME, Checkpoints
from normscope.runs.events import FinishedEvent
from normscope.runs.lock import is_locked
from normscope.runs.manifest import MANIFEST_NAME, Manifest, read_manifest, read_verified, write_manifest
from normscope.runs.metrics import read_metrics
from normscope.runs.tensor_specs import TensorSpec, tensor_specs
from normscope.runs.xray_snapshots import XraySnapshots
from normscope.runtime.devices import resolve_device
from normscope.storage.file_format import FileFormat, rename_fields
from normscope.storage.files import make_folder, open_regular
from normscope.storage.json_files import LARGE_FILE_BYTES, StrictStruct, convert, parse_json
from normscope.storage.safe_folder import SafeFolder
from normscope.training.config import TrainConfig

_TRAIN_FIELDS_2 = {
    "optimiser": "optimizer",
    "matrix_rate": "matrix_lr",
    "rate": "lr",
    "final_rate": "final_lr",
    "clip": "grad_clip",
    "evaluate_every": "eval_every",
}
"""Training settings of format 2, and their current names."""


def _migrate_config_2(content: dict[str, Any]) -> dict[str, Any]:
    train = content.get("train")
    if not isinstance(train, Mapping):
        return content
    train = rename_fields(train, _TRAIN_FIELDS_2)
    if train.get("on_nan") == "rewind":
        train["on_nan"] = "rollback"
    return {**content, "train": train}


_FORMAT = FileFormat(3, {2: _migrate_config_2})
CONFIG_NAME = "config.json"
NAN_FOLDER = "nan"
"""Folder of the bundles that `normscope replay` reads."""


class _CorpusEntry(StrictStruct):
    folder: str
    train: Sha256
    validation: Sha256
    tokenizer: Sha256


class _ConfigFile(StrictStruct):
    """Schema of config.json; model and training settings are validated separately."""

    format: int
    normscope: str
    corpus: _CorpusEntry
    model: dict[str, Any]
    train: dict[str, Any]
    prompt: str


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines the result of a run.

    Args:
        corpus: Folder of the prepared corpus, relative to the run folder or absolute.
        fingerprint: Checksums of the corpus when the run started.
        model, train: Model and training configuration.
        prompt: Prompt of the samples drawn during training.
    """

    corpus: str
    fingerprint: Mapping[str, str]
    model: GPTConfig
    train: TrainConfig
    prompt: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT.version,
            "normscope": __version__,
            "corpus": {"folder": self.corpus, **self.fingerprint},
            "model": config_to_json(self.model),
            "train": self.train.to_json(),
            "prompt": self.prompt,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RunConfig":
        content = _FORMAT.migrate(content, name="it", error=ConfigError)
        file = convert(content, _ConfigFile, name="it", fix="restore it from a copy", error=ConfigError)
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
        folder: The run folder.
        config: Contents of config.json.
        config_sha256: Checksum of config.json, which every checkpoint is bound to.
    """

    def __init__(self, folder: Path, config: RunConfig, config_sha256: str) -> None:
        self.folder, self.config = folder, config
        self.safe_folder = SafeFolder(folder)
        self.checkpoints = Checkpoints(self.safe_folder / "checkpoints", config_sha256)
        self.metrics = folder / "metrics.jsonl"
        self.xray_snapshots = XraySnapshots(self.safe_folder / "xray")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    @classmethod
    def create(cls, folder: Path, config: RunConfig, tokenizer: Path) -> Self:
        """Create a run in a folder that has none, with a copy of the tokenizer."""
        check_no_run(folder)
        safe_folder = SafeFolder(make_folder(folder))
        with open_regular(tokenizer) as file:
            safe_folder.write(TOKENIZER_NAME, file.read())
        data = json.dumps(config.to_json(), indent=1, allow_nan=False).encode()
        safe_folder.write(CONFIG_NAME, data)
        write_manifest(safe_folder, [CONFIG_NAME, TOKENIZER_NAME])  # last: a folder without a manifest is not a run
        return cls(folder, config, hashlib.sha256(data).hexdigest())

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open the run in a folder; config.json is verified against the manifest."""
        folder = as_path(folder, "a run")
        data = read_config_file(folder)
        path, fix = folder / CONFIG_NAME, _restore_fix(folder)
        content = parse_json(data, dict[str, Any], name=str(path), fix=fix, error=ConfigError)
        try:
            return cls(folder, RunConfig.from_json(content), hashlib.sha256(data).hexdigest())
        except NormscopeError as error:
            problem = str(error)
            problem += "" if "\nfix: " in problem else f"\nfix: {fix}"
            raise ConfigError(f"{path} is not a valid run config: {problem}") from error

    def corpus(self, *, verify: bool | Collection[CorpusPart] = False) -> Corpus:
        """Open the corpus; raises if it changed since the run started. `verify` checks every byte of these splits."""
        folder = self.folder / self.config.corpus
        self._check_corpus_links()
        if not folder.is_dir():
            raise FileError(
                f"the corpus of {self.folder} is no longer in {folder}\n"
                f"fix: move it back (`normscope sample` and `chat` work without it)"
            )
        corpus = open_corpus(folder, verify=verify)
        current = fingerprint(corpus)
        changed = [name for name, value in self.config.fingerprint.items() if current.get(name) != value]
        if changed:
            raise CheckpointError(
                f"the corpus in {folder} changed since this run started: {', '.join(changed)}\n"
                f"fix: restore the old corpus, or start a new run"
            )
        return corpus

    def _check_corpus_links(self) -> None:
        """Raise if a file of a corpus inside the run folder is a symbolic link. A corpus elsewhere may be linked."""
        parts = Path(self.config.corpus).parts
        if not Path(self.config.corpus).is_absolute() and ".." not in parts:
            safe_folder = SafeFolder(self.folder, *parts)
            for name in (RECORD_NAME, TOKENIZER_NAME, *map(part_name, PARTS)):
                safe_folder.has(name)

    def is_done(self) -> bool:
        """Whether all steps are done, including validation and sampling after the last one."""
        if self.checkpoints.last() != self.config.train.steps or not self.safe_folder.has(self.metrics.name):
            return False
        try:
            *_, last = [{}, *read_metrics(self.metrics)]
        except FileError:  # the tasks after the last step will be repeated
            return False
        return last.get("kind") == FinishedEvent.kind and last.get("reason") == "done"

    def tokenizer(self) -> Tokenizer:
        """Load the run's copy of the tokenizer, which does not need the corpus."""
        path, fix = self.folder / TOKENIZER_NAME, f"copy it from {self.folder / self.config.corpus}"
        if not self.safe_folder.has(TOKENIZER_NAME):
            raise CheckpointError(f"{path} is missing\nfix: {fix}")
        data = self.safe_folder.read(TOKENIZER_NAME, LARGE_FILE_BYTES)
        if hashlib.sha256(data).hexdigest() != self.config.fingerprint["tokenizer"]:
            raise CheckpointError(f"{path} changed since this run started\nfix: {fix}")
        tokenizer = parse_tokenizer(data, path)
        if tokenizer.vocab_size != self.config.model.vocab_size:
            raise CheckpointError(
                f"{path} has {tokenizer.vocab_size} tokens, the model {self.config.model.vocab_size}\nfix: {fix}"
            )
        return tokenizer

    def load_model(self, checkpoint: str | int = "best", device: str = "cpu") -> tuple[GPT, int]:
        """Load the model of a checkpoint ("best", "last" or a step) in eval mode; returns model and step."""
        with torch.device("meta"):  # shapes only; raises if the sizes are impossible
            expected = tensor_specs(GPT(self.config.model).state_dict())
        target, step = resolve_device(device), self._resolve_step(checkpoint)
        try:
            tensors = self._weights(step, expected)
        except CheckpointError:
            if self._resolve_step(checkpoint) == step:
                raise
            step = self._resolve_step(checkpoint)  # a training process replaced the checkpoint meanwhile
            tensors = self._weights(step, expected)
        model = GPT(self.config.model)
        model.load_state_dict(tensors)
        return model.to(target).eval(), step

    def sample(self, prompt: str = "", *, checkpoint: str | int = "best", device: str = "cpu", **sampling: Any) -> str:
        """Generate one text that continues a prompt; returns prompt and continuation.

        Args:
            prompt: Start of the text.
            checkpoint: "best", "last", or a saved step.
            device: Device of the model.
            sampling: Settings of `generate_text`: temperature, top_k, max_new_tokens, seed, ...
        """
        from normscope.generate.text import generate_text

        model, _ = self.load_model(checkpoint, device)
        (text,) = generate_text(model, self.tokenizer(), prompt, **sampling)
        return text.prompt + text.text

    def report(self) -> Path:
        """Write report.html and return its path."""
        from normscope.runs.report.page import write_report

        return write_report(self.folder)

    def _weights(self, step: int, expected: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        with self.checkpoints.with_alternatives(step):
            tensors = self.checkpoints.open(step).tensors("model", expected)
            check_finite(tensors, self.checkpoints.path(step))
        return tensors

    def _resolve_step(self, checkpoint: str | int) -> int:
        last = self.checkpoints.last()
        if last is None:
            raise CheckpointError(f"{self.folder} has no checkpoint yet{self._no_checkpoint_hint()}")
        if isinstance(checkpoint, bool) or not isinstance(checkpoint, str | int):
            raise DtypeError(f"checkpoint must be 'best', 'last' or a step number, but got {checkpoint!r:.60}")
        if checkpoint == "best":
            return self._best_step(last)
        if checkpoint == "last":
            return last
        if re.fullmatch(r"[0-9]{1,15}", str(checkpoint)) and int(checkpoint) in self.checkpoints.steps():
            return int(checkpoint)
        steps = ", ".join(map(str, self.checkpoints.steps()))
        raise CheckpointError(
            f"{self.folder} has no checkpoint {str(checkpoint)!r}\nfix: choose one of best, last, {steps}"
        )

    def _best_step(self, last: int) -> int:
        """The step marked in best.json; the last one before the first validation."""
        best, path = self.checkpoints.marked_best(), self.checkpoints.folder / BEST_NAME
        fix = f"--checkpoint last, or one of {', '.join(map(str, self.checkpoints.steps()))}"
        if best is not None and best not in self.checkpoints.steps():
            raise CheckpointError(f"{path} names step {best}, which has no checkpoint\nfix: {fix}")
        if not self.checkpoints.has_best_mark() and self.checkpoints.state(last).best is not None:
            raise CheckpointError(f"{path} is missing although the run was validated\nfix: {fix}")
        return last if best is None else best

    def _no_checkpoint_hint(self) -> str:
        """Why there is no checkpoint, and how to get one."""
        if is_locked(self.folder):
            train = self.config.train
            first = min(every or train.steps for every in (train.save_every, train.eval_every))
            return f": it is still training\nfix: wait for the first checkpoint, at step {min(first, train.steps)}"
        if self.safe_folder.has(NAN_FOLDER):
            return ": it hit a NaN or Inf first\nfix: start a new run with a lower --matrix-lr and --lr"
        return f"\nfix: normscope resume {self.folder}"


def fingerprint(corpus: Corpus) -> dict[str, str]:
    """Checksums of a corpus: training split, validation split and tokenizer."""
    record = corpus.record
    return {
        "train": record.train.sha256,
        "validation": record.validation.sha256,
        "tokenizer": record.tokenizer_sha256,
    }


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise if a tensor of a checkpoint has a NaN or Inf."""
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{path} has non-finite values in {name}")


def read_config_file(folder: Path) -> bytes:
    """Read config.json, verified against the manifest."""
    safe_folder = SafeFolder(folder)
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise FileError(f"{folder} is not a run: it {problem}\nfix: pass a folder written by `normscope train`")
    if not safe_folder.has(CONFIG_NAME):
        raise FileError(
            f"{folder} is not a run: it has no {CONFIG_NAME}\nfix: pass a folder written by `normscope train`"
        )
    manifest = read_manifest(safe_folder, _restore_fix(folder))
    try:
        return read_verified(safe_folder, CONFIG_NAME, manifest.files, _restore_fix(folder))
    except CheckpointError as error:
        changes = _changed_settings(safe_folder, manifest)
        if not changes:
            raise
        raise CheckpointError(
            f"{folder / CONFIG_NAME} changed since this run started: {'; '.join(changes)}\n"
            f"fix: restore it, or start a new run with the new settings"
        ) from error


def _changed_settings(safe_folder: SafeFolder, manifest: Manifest) -> list[str]:
    """Settings of config.json that differ from the last checkpoint's, as far as both can be read."""
    try:
        checkpoints = Checkpoints(safe_folder / "checkpoints", manifest.files[CONFIG_NAME].sha256)
        last = checkpoints.last()
        if last is None:
            return []
        now = parse_json(safe_folder.read(CONFIG_NAME), dict[str, Any], name=CONFIG_NAME, fix="")
        return list(config_differences(checkpoints.state(last).config, now))[:4]
    except (NormscopeError, KeyError):
        return []


def _restore_fix(folder: Path) -> str:
    return f"restore it from a copy, or start a new run; {folder}/checkpoints/*/state.json has the settings too"


def is_run(folder: Path) -> bool:
    """Whether the folder contains a run."""
    return (folder / CONFIG_NAME).is_file() and (folder / MANIFEST_NAME).is_file()


def check_no_run(folder: Path) -> None:
    if is_run(folder):
        raise FileError(
            f"{folder} already contains a run\nfix: normscope resume {folder}, or choose another folder with --out"
        )


def check_sources_unchanged(corpus: Corpus) -> list[str]:
    """Raise if a source file of the corpus changed since it was tokenized; returns the names of missing ones.

    A missing file does no harm, since the corpus has its tokens. A changed file is most likely not what the user thinks
    the run trains on.
    """
    changes = changed_sources(corpus.record.sources)
    changed = [name for name, change in changes.items() if change == "changed"]
    if changed:
        raise CheckpointError(
            f"source text changed since this run started: {', '.join(changed)}\n"
            f"fix: start a new run to train on the new text; to continue this one, restore the old text or move the "
            f"new one away"
        )
    return list(changes)


def config_differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Describe the settings that differ."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from config_differences(old, new, f"{prefix}{name}.")
        elif old != new and (prefix, name) != ("", "normscope"):
            yield f"{prefix}{name} was {old!r} and is {new!r}"
