"""A run folder: config.json, tokenizer.json, tokens, metrics.jsonl, checkpoints and report.html."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Self

import torch

from normscope.blocks.lora import load_trained, merge_lora, trained_tensors
from normscope.checks import as_path, check_positive_int
from normscope.data.corpus import RECORD_NAME, TOKENIZER_NAME, Corpus, marks_name, open_corpus, part_name
from normscope.data.sources import changed_sources
from normscope.data.split import PARTS, CorpusPart
from normscope.data.tokenizers import Tokenizer
from normscope.data.tokenizers.load import parse_tokenizer
from normscope.data.tokenizers.template_settings import TOKENIZER_CONFIG, parse_template_settings
from normscope.errors import CheckpointError, ConfigError, FileError, NormscopeError
from normscope.interop.checkpoint import model_from_weights
from normscope.interop.files.lazy_tensors import tensor_specs
from normscope.interop.files.safetensors_file import open_safetensors
from normscope.models.gpt import GPT
from normscope.runs.checkpoints import Checkpoints
from normscope.runs.checksummed_folder import MANIFEST_NAME, ChecksummedFolder, write_manifest
from normscope.runs.config import CONFIG_NAME, RunConfig, config_source, corpus_fingerprint, read_config_file
from normscope.runs.events import FinishedEvent
from normscope.runs.extension import Extension, read_extension, write_extension
from normscope.runs.initial_weights import empty_model, initial_model, set_trainable
from normscope.runs.metrics_file import read_metrics
from normscope.runs.xray_snapshots import XraySnapshots
from normscope.runtime.devices import resolve_device
from normscope.runtime.rng import preserve_rng
from normscope.storage.files import make_folder, open_regular
from normscope.storage.json_files import MAX_TOKENIZER_BYTES, JsonSource, to_json_bytes
from normscope.storage.lock import is_locked, locked
from normscope.storage.safe_folder import SafeFolder

NAN_FOLDER = "nan"
"""Folder of the bundles that `normscope replay` reads."""


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
        self.extension: Extension | None = None
        self.checkpoints = Checkpoints(self.safe_folder / "checkpoints", config_sha256)
        self.metrics = folder / "metrics.jsonl"
        self.xray_snapshots = XraySnapshots(self.safe_folder / "xray")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    @classmethod
    def create(cls, folder: Path, config: RunConfig, tokenizer: Path) -> Self:
        """Create a run in a folder that has none, with a copy of the tokenizer.

        Its chat template, if it has one, is already in the folder.
        """
        check_no_run(folder)
        safe_folder = SafeFolder(make_folder(folder))
        with open_regular(tokenizer) as file:
            safe_folder.write(TOKENIZER_NAME, file.read())
        data = to_json_bytes(config.to_json())
        safe_folder.write(CONFIG_NAME, data)
        names = [CONFIG_NAME, TOKENIZER_NAME, *([TOKENIZER_CONFIG] if safe_folder.has(TOKENIZER_CONFIG) else [])]
        write_manifest(safe_folder, names)  # last: a folder without a manifest is not a run
        return cls(folder, config, hashlib.sha256(data).hexdigest())

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open the run in a folder; config.json is verified against the manifest."""
        folder = as_path(folder, "a run")
        data = read_config_file(folder)
        source = config_source(folder)
        content = source.parse(data, dict[str, Any])
        try:
            run = cls(folder, RunConfig.from_json(content), hashlib.sha256(data).hexdigest())
        except NormscopeError as error:
            raise source.wrap(error, "is not a valid run config") from error
        run.reload_extension()
        return run

    def extend(self, steps: int) -> None:
        """Train the run for more steps than planned: `resume` continues to the new end.

        From the next step on, the learning-rate schedule is that of the longer run. The current number changes nothing.
        """
        with locked(self.folder):
            self.plan_extension(steps)
            self.save_extension()

    def plan_extension(self, steps: int) -> None:
        """Extend the run in memory only. `save_extension` writes it when it is known that training can continue."""
        check_positive_int(steps=steps)
        self.corpus_folder()  # raises if there is nothing to train on
        self.reload_extension()
        planned = self.config.train.steps
        if steps < planned:
            fix = f"use the new total, more than {planned}"
            raise ConfigError(f"steps={steps}, but the run already has {planned} steps\nfix: {fix}")
        if steps > planned:
            before = [planned] if self.extension is None else [*self.extension.before, planned]
            self._set_extension(Extension(steps=steps, before=before))

    def reload_extension(self) -> None:
        """Forget a planned extension, and apply the saved one: another process may have extended the run."""
        self._set_extension(self._saved_extension())

    def save_extension(self) -> None:
        """Write a planned extension. The run must be locked."""
        if self.extension is not None and self.extension != self._saved_extension():
            write_extension(self.safe_folder, self.extension)

    def _saved_extension(self) -> Extension | None:
        return read_extension(self.safe_folder, self._steps_at_creation())

    def _set_extension(self, extension: Extension | None) -> None:
        steps = self._steps_at_creation() if extension is None else extension.steps
        self.extension = extension
        self.config = replace(self.config, train=replace(self.config.train, steps=steps))

    def _steps_at_creation(self) -> int:
        return self.config.train.steps if self.extension is None else self.extension.before[0]

    def corpus(self, *, verify: bool | Collection[CorpusPart] = False) -> Corpus:
        """Open the corpus; raises if it changed since the run started. `verify` checks every byte of these splits."""
        folder = self.corpus_folder()
        self._check_corpus_links(Path(self.config.corpus or ""))
        if not folder.is_dir():
            raise FileError(
                f"the corpus of {self.folder} is no longer in {folder}\n"
                f"fix: move it back (`normscope sample` and `chat` work without it)"
            )
        corpus = open_corpus(folder, verify=verify)
        current = corpus_fingerprint(corpus)
        changed = [name for name, value in self.config.fingerprint.items() if current.get(name) != value]
        if changed:
            raise CheckpointError(
                f"the corpus in {folder} changed since this run started: {', '.join(changed)}\n"
                f"fix: restore the old corpus, or start a new run"
            )
        return corpus

    def corpus_folder(self) -> Path:
        """Folder of the corpus; raises for an imported model, which has none."""
        if self.config.corpus is None:
            raise CheckpointError(
                f"{self.folder} has no training data: it was imported from {self._imported_from()}\n"
                f"fix: normscope train my.txt --from {self.folder}"
            )
        return self.folder / self.config.corpus

    def _imported_from(self) -> str:
        imported = self.config.imported
        return "" if imported is None else f"{imported.source} ({imported.format})"

    def _check_corpus_links(self, corpus: Path) -> None:
        """Raise if a file of a corpus inside the run folder is a symbolic link. A corpus elsewhere may be linked."""
        if not corpus.is_absolute() and ".." not in corpus.parts:
            safe_folder = SafeFolder(self.folder, *corpus.parts)
            for name in (RECORD_NAME, TOKENIZER_NAME, *map(part_name, PARTS), *map(marks_name, PARTS)):
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
        path, vocab_size = self.folder / TOKENIZER_NAME, self.config.model.vocab_size
        origin = self._imported_from() if self.config.corpus is None else self.corpus_folder()
        source = JsonSource(path, f"copy it from {origin}", CheckpointError)
        if not self.safe_folder.has(TOKENIZER_NAME):
            raise source.problem("is missing")
        data = self.safe_folder.read(TOKENIZER_NAME, MAX_TOKENIZER_BYTES)
        if hashlib.sha256(data).hexdigest() != self.config.fingerprint["tokenizer"]:
            raise source.problem("changed since this run started")
        tokenizer = parse_tokenizer(data, path)
        is_from_elsewhere = self.config.imported is not None or self.config.origin is not None
        is_padded = is_from_elsewhere and tokenizer.vocab_size < vocab_size
        if tokenizer.vocab_size != vocab_size and not is_padded:
            raise source.problem(f"has {tokenizer.vocab_size} tokens, the model {vocab_size}")
        files = ChecksummedFolder(self.safe_folder, fix="restore it from a copy")
        if TOKENIZER_CONFIG in files.files:
            parse_template_settings(files.read(TOKENIZER_CONFIG), self.folder).apply(tokenizer)
        return tokenizer

    def initial_model(self, device: torch.device) -> GPT:
        """Build the model as it is before the first step."""
        return initial_model(self.safe_folder, self.config, device)

    def load_model(self, checkpoint: str | int = "best", device: str = "cpu") -> tuple[GPT, int]:
        """Load the model of a checkpoint ("best", "last" or a step) in eval mode; returns model and step.

        LoRA adapters are merged into the weights.
        """
        model, step = self.load_trained_model(checkpoint, device)
        merge_lora(model)
        return model.requires_grad_(), step

    def load_trained_model(self, checkpoint: str | int = "best", device: str = "cpu") -> tuple[GPT, int]:
        """Load a model as `load_model` does, but as it is trained: with adapters and frozen parameters."""
        if self.config.imported is not None:
            step = self._resolve_step(checkpoint)
            weights = open_safetensors(self.checkpoints.open(step).verified("model.safetensors"))
            return model_from_weights(self.config.model, weights, device), step
        empty = empty_model(self.config.model)
        if self.config.origin is not None:
            set_trainable(empty, self.config.train)
        expected = {"model": tensor_specs(trained_tensors(empty))}
        target, step = resolve_device(device), self._resolve_step(checkpoint)
        try:
            tensors = self.checkpoints.tensors(step, expected)
        except CheckpointError:
            if self._resolve_step(checkpoint) == step:
                raise
            step = self._resolve_step(checkpoint)  # a training process replaced the checkpoint meanwhile
            tensors = self.checkpoints.tensors(step, expected)
        with preserve_rng(target):
            model = self.initial_model(target)
        load_trained(model, tensors["model"])
        return model.eval(), step

    def sample(self, prompt: str = "", *, checkpoint: str | int = "best", device: str = "cpu", **settings: Any) -> str:
        """Generate one text that continues a prompt; returns prompt and continuation.

        Args:
            prompt: Start of the text.
            checkpoint: "best", "last", or a saved step.
            device: Device of the model.
            settings: Settings of `normscope.sample`: temperature, top_k, max_new_tokens, seed, ...
        """
        from normscope.runs.sample import sample

        if not isinstance(prompt, str) or settings.get("samples", 1) != 1:
            raise ConfigError("Run.sample returns one text for one prompt\nfix: normscope.sample(run, prompts)")
        (text,) = sample(self, prompt, checkpoint=checkpoint, device=device, **settings)
        return text.prompt + text.text

    def _repr_html_(self) -> str:
        """The report page, for notebooks."""
        from normscope.render.notebook import page_frame
        from normscope.runs.report.page import report_html
        from normscope.runs.report.run_record import read_run_record

        return page_frame(report_html(read_run_record(self.folder)))

    def report(self) -> Path:
        """Write report.html and return its path."""
        from normscope.runs.report.page import write_report

        return write_report(self.folder)

    def _resolve_step(self, checkpoint: str | int) -> int:
        if self.checkpoints.last() is None:
            raise CheckpointError(f"{self.folder} has no checkpoint yet{self._no_checkpoint_hint()}")
        return self.checkpoints.resolve(checkpoint)

    def _no_checkpoint_hint(self) -> str:
        """Why there is no checkpoint, and how to get one."""
        if is_locked(self.folder):
            train = self.config.train
            first = min(every or train.steps for every in (train.save_every, train.eval_every))
            return f": it is still training\nfix: wait for the first checkpoint, at step {min(first, train.steps)}"
        if self.safe_folder.has(NAN_FOLDER):
            return ": it hit a NaN or Inf first\nfix: start a new run with a lower --matrix-lr and --lr"
        return f"\nfix: normscope resume {self.folder}"


def is_run(folder: Path) -> bool:
    """Whether the folder contains a run."""
    return (folder / CONFIG_NAME).is_file() and (folder / MANIFEST_NAME).is_file()


def run_folders(sources: Sequence[str | Path]) -> Iterator[Path]:
    """Those of runs/NAME, runs/NAME-2, ... that contain runs, and the first that doesn't."""
    stem = Path(sources[0]).stem if sources else "stories"
    name = "".join(char if char.isalnum() or char in "-_." else "-" for char in stem).strip("-.") or "run"
    for number in count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        yield folder
        if not is_run(folder):
            return


def new_run_folder(sources: Sequence[str | Path]) -> Path:
    """The first free one of `run_folders`."""
    *_, free = run_folders(sources)
    return free


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
