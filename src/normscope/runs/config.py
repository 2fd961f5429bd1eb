"""config.json: everything that determines the result of a run."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from normscope._version import __version__
from normscope.data.corpus import Corpus, Sha256
from normscope.errors import CheckpointError, ConfigError, FileError, NormscopeError
from normscope.models.config_json import config_from_json, config_to_json
from normscope.models.gpt import GPTConfig
from normscope.runs.checkpoints import Checkpoints
from normscope.runs.checksummed_folder import ChecksummedFolder
from normscope.storage.json_files import FileFormat, JsonSource, StrictStruct
from normscope.storage.safe_folder import SafeFolder
from normscope.training.config import TrainConfig

CONFIG_NAME = "config.json"


def _rename_muon_steps(config: dict[str, Any]) -> dict[str, Any]:
    """From format 1 to 2: train.muon_steps is called ns_steps."""
    train = config.get("train")
    if not isinstance(train, Mapping):
        return config  # the schema reports it
    return {**config, "train": {"ns_steps" if name == "muon_steps" else name: train[name] for name in train}}


def _without_origin(config: dict[str, Any]) -> dict[str, Any]:
    """From format 2 to 3: a run may start from the weights of another model; earlier ones start from random weights."""
    return {**config, "origin": None}


CONFIG_FORMAT = FileFormat(3, {1: _rename_muon_steps, 2: _without_origin})


class _CorpusEntry(StrictStruct):
    folder: str
    train: Sha256
    validation: Sha256
    tokenizer: Sha256


class Origin(StrictStruct):
    """Where the initial weights of a run come from; the run folder has a copy of them.

    Args:
        format: Kind of checkpoint, such as "Hugging Face llama" or "normscope run".
        path: Its file or folder.
        weights_sha256: Checksum of the copy.
    """

    format: str
    path: str
    weights_sha256: Sha256


class Imported(StrictStruct):
    """Where an imported model comes from.

    Args:
        format: Kind of checkpoint, such as "Hugging Face llama".
        source: Name of its file or folder.
        tokenizer: Checksum of the run's tokenizer.json.
    """

    format: str
    source: str
    tokenizer: Sha256


class _ConfigFile(StrictStruct):
    """Schema of config.json; model and training settings are validated separately."""

    normscope: str
    corpus: _CorpusEntry | None
    model: dict[str, Any]
    train: dict[str, Any]
    prompt: str
    origin: Origin | None
    imported: Imported | None = None


@dataclass(frozen=True)
class RunConfig:
    """The contents of config.json.

    Args:
        corpus: Folder of the prepared corpus, relative to the run folder or absolute; None for an imported model.
        fingerprint: Checksums of the corpus when the run started; of an imported model only that of its tokenizer.
        model, train: Model and training configuration.
        prompt: Prompt of the samples drawn during training.
        origin: Where the initial weights come from; None for random ones.
        imported: Where an imported model comes from; None for a run that was trained here.
    """

    corpus: str | None
    fingerprint: Mapping[str, str]
    model: GPTConfig
    train: TrainConfig
    prompt: str = ""
    origin: Origin | None = None
    imported: Imported | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "format": CONFIG_FORMAT.version,
            "normscope": __version__,
            "corpus": None if self.corpus is None else {"folder": self.corpus, **self.fingerprint},
            "model": config_to_json(self.model),
            "train": self.train.to_json(),
            "prompt": self.prompt,
            "origin": None if self.origin is None else msgspec.to_builtins(self.origin),
            **({} if self.imported is None else {"imported": msgspec.to_builtins(self.imported)}),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RunConfig":
        source = JsonSource("it", "restore it from a copy", ConfigError)
        file = source.convert(source.migrate(content, CONFIG_FORMAT), _ConfigFile)
        known = file.corpus or file.imported
        if known is None or (file.corpus and file.imported):
            raise source.problem("must have either a corpus or the source of an import")
        sums = ("train", "validation", "tokenizer")
        return cls(
            corpus=None if file.corpus is None else file.corpus.folder,
            fingerprint={name: getattr(known, name) for name in sums if hasattr(known, name)},
            model=config_from_json(file.model),
            train=TrainConfig.from_json(file.train),
            prompt=file.prompt,
            origin=file.origin,
            imported=file.imported,
        )


def corpus_fingerprint(corpus: Corpus) -> dict[str, str]:
    """Checksums of a corpus: training split, validation split and tokenizer."""
    record = corpus.record
    return {"train": record.train.sha256, "validation": record.validation.sha256, "tokenizer": record.tokenizer_sha256}


def config_source(folder: Path) -> JsonSource:
    """The config.json of a run folder, as errors show it."""
    fix = f"restore it from a copy, or start a new run; {folder}/checkpoints/*/state.json has the settings too"
    return JsonSource(folder / CONFIG_NAME, fix, ConfigError)


def read_config_file(folder: Path) -> bytes:
    """Read config.json, verified against the manifest."""
    safe_folder = SafeFolder(folder)
    problem = None
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
    elif not safe_folder.has(CONFIG_NAME):
        problem = f"has no {CONFIG_NAME}"
    if problem is not None:
        raise FileError(f"{folder} is not a run: it {problem}\nfix: pass a folder written by `normscope train`")
    files = ChecksummedFolder(safe_folder, fix=config_source(folder).fix)
    try:
        return files.read(CONFIG_NAME)
    except CheckpointError as error:
        changes = _changed_settings(files)
        if not changes:
            raise
        raise _config_changed(folder / CONFIG_NAME, changes) from error


def check_same_config(config: RunConfig, saved: Mapping[str, Any], extended_from: Collection[int] = ()) -> None:
    """Raise if the config changed since a checkpoint was written, naming the settings.

    Args:
        config: The config now.
        saved: The config in the checkpoint.
        extended_from: Numbers of steps that the run had before it was extended.
    """
    saved = _migrated(saved)
    current, train = config.to_json(), saved.get("train")
    if isinstance(train, Mapping) and train.get("steps") in extended_from:
        current["train"]["steps"] = train["steps"]
    changes = list(_differences(saved, current))
    if changes:
        raise _config_changed(CONFIG_NAME, changes)


def _migrated(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config in the current format, with defaults for fields added since; an invalid one is left as it is."""
    with suppress(NormscopeError):
        return RunConfig.from_json(content).to_json()
    return content


def _config_changed(name: str | Path, changes: list[str]) -> CheckpointError:
    return CheckpointError(
        f"{name} changed since this run started: {'; '.join(changes)}\n"
        f"fix: restore it, or start a new run with the new settings"
    )


def _changed_settings(files: ChecksummedFolder) -> list[str]:
    """Settings of config.json that differ from the last checkpoint's, as far as both can be read."""
    try:
        checkpoints = Checkpoints(files.folder / "checkpoints", files.files[CONFIG_NAME].sha256)
        last = checkpoints.last()
        if last is None:
            return []
        now = JsonSource(CONFIG_NAME, "").parse(files.folder.read(CONFIG_NAME), dict[str, Any])
        return list(_differences(_migrated(checkpoints.state(last).config), _migrated(now)))[:4]
    except (NormscopeError, KeyError):
        return []


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Describe the settings that differ."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{name}.")
        elif old != new and (prefix, name) != ("", "normscope"):
            yield f"{prefix}{name} was {old!r} and is {new!r}"
