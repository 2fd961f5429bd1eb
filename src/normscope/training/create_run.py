"""Create a run from text and a recipe, ready to train."""

import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from normscope.checks import as_path, check_config, check_setting_names, short_repr
from normscope.data.corpus import RECORD_NAME, TOKENIZER_NAME, Corpus, marks_name, open_corpus, part_name
from normscope.data.packed_batches import training_batches, validation_batches
from normscope.data.prepare import prepare, prepare_stories
from normscope.data.readers import Progress
from normscope.data.sources import source_names
from normscope.data.split import PARTS
from normscope.data.tokenizers.template_settings import TOKENIZER_CONFIG, template_settings
from normscope.errors import ConfigError, FileError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.models.gpt import GPTConfig
from normscope.models.presets import preset
from normscope.runs.config import CONFIG_NAME, RunConfig, corpus_fingerprint
from normscope.runs.initial_weights import FOLDER_NAME as INITIAL_WEIGHTS
from normscope.runs.initial_weights import empty_model, set_trainable
from normscope.runs.job import JOB_NAME, mark_job
from normscope.runs.read_source import need_tokenizer
from normscope.runs.run import Run, check_no_run
from normscope.runtime.devices import check_compile, resolve_device
from normscope.runtime.precision import choose_precision
from normscope.storage.files import is_partial, make_folder
from normscope.storage.lock import LOCK_NAME, locked
from normscope.storage.safe_folder import SafeFolder
from normscope.training.config import TrainConfig
from normscope.training.finetune import copy_weights, source_config
from normscope.training.memory_estimate import check_memory
from normscope.training.recipes import Recipe

_DATA = "data"


def create_run(
    folder: str | Path,
    sources: Sequence[str | Path],
    recipe: Recipe,
    *,
    column: str = "text",
    val_fraction: float | None = None,
    allow_special: bool = False,
    model: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    prompt: str = "",
    source: ExternalCheckpoint | None = None,
    progress: Progress | None = None,
    arguments: Mapping[str, str] | None = None,
) -> Run:
    """Tokenize the text, write the config, and return the new run; `train_run` trains it.

    Args:
        folder: Run folder; must not contain a run yet.
        sources: Files, folders and glob patterns; one folder written by `prepare`; or empty for the built-in stories.
        recipe: Default settings.
        column, val_fraction, allow_special: See `prepare`.
        model, train: Settings that override the recipe's.
        prompt: Prompt of the samples drawn during training.
        source: Start from this checkpoint, with its architecture and tokenizer.
        progress: Called with the number of bytes read and the total.
        arguments: The arguments of a torchrun job, which it must have again when it restarts; see `job_arguments`.
    """
    folder, sources = as_path(folder, "a run"), source_names(sources)
    check_config(recipe, Recipe, "a run", ", or with recipe()")
    for name, settings in (("model", model), ("train", train)):
        if not isinstance(settings, Mapping | None):
            raise ConfigError(f"{name}={short_repr(settings)} must be a dict of settings")
    if not isinstance(prompt, str):
        raise ConfigError(f"prompt={short_repr(prompt)} must be a string")
    if "vocab_size" in (model or {}):
        raise ConfigError(
            "vocab_size cannot be set here: it comes from the tokenizer\nfix: --tokenizer or --vocab-size"
        )
    # Validate everything possible before tokenizing, which may take hours.
    training = check_settings(recipe, model, train, source)
    check_no_run(folder)
    with _locked_new_folder(folder):
        if source is not None:
            recipe = _with_tokenizer_of(source, recipe, folder / TOKENIZER_NAME, sources)
        options = {"column": column, "val_fraction": val_fraction, "allow_special": allow_special}
        corpus = _corpus(folder / _DATA, sources, recipe, options, seed=training.seed, progress=progress)
        architecture = model_config(recipe, model, source, corpus.tokenizer.vocab_size)
        corpus.tokenizer.encode(prompt)  # raises on an unknown character
        config = RunConfig(
            corpus=_relative(corpus.folder, folder),
            fingerprint=corpus_fingerprint(corpus),
            model=architecture,
            train=training,
            prompt=prompt,
            origin=None if source is None else copy_weights(SafeFolder(folder), source, architecture),
        )
        # Raises if the text is too short.
        training_batches(corpus, config.model.context, training.batch, training.seed)
        validation_batches(corpus, config.model.context, training.batch)
        _write_template(SafeFolder(folder), corpus, source)
        mark_job(SafeFolder(folder), arguments or {})
        return Run.create(folder, config, corpus.folder / TOKENIZER_NAME)


def model_config(
    recipe: Recipe, model: Mapping[str, Any] | None, source: ExternalCheckpoint | None, vocab_size: int
) -> GPTConfig:
    """The architecture of a new run: that of the recipe, or of the source."""
    if source is None:
        return preset(recipe.preset, **{**recipe.model, **(model or {}), "vocab_size": vocab_size})
    return source_config(source, model or {})


def check_settings(
    recipe: Recipe,
    model: Mapping[str, Any] | None,
    train: Mapping[str, Any] | None,
    source: ExternalCheckpoint | None = None,
) -> TrainConfig:
    """Check the settings of a new run, as far as possible without its text, and return those of the training."""
    check_setting_names("the training", train or {}, TrainConfig)
    training = TrainConfig(**{**recipe.train, **(train or {})})
    device = resolve_device(training.device)
    choose_precision(training.precision, device)
    check_compile(training.compile, device)
    if source is None:
        preset(recipe.preset, **{**recipe.model, **(model or {})})
        if any(getattr(training, name) for name in ("lora", "freeze")):
            raise ConfigError("LoRA and frozen parameters need the weights of a model\nfix: --from SOURCE")
    architecture = model_config(recipe, model, source, 1)  # the vocab_size of a new model is not known yet
    if source is not None:
        set_trainable(empty_model(architecture), training)  # raises if a pattern matches nothing
    check_memory(architecture, training)
    return training


@contextmanager
def _locked_new_folder(folder: Path) -> Iterator[None]:
    """Create and lock a run folder. On an error, remove everything that was created."""
    created = (folder / _DATA, folder / INITIAL_WEIGHTS, folder)
    existed = [path for path in created if path.is_dir()]
    make_folder(folder)
    with locked(folder):
        _check_empty(folder)
        try:
            yield
        except BaseException:
            for path in created:
                if path not in existed:
                    shutil.rmtree(path, ignore_errors=True)
            raise


def _check_empty(folder: Path) -> None:
    """Raise unless the folder is empty, apart from the files of an earlier attempt that was killed."""
    check_no_run(folder)  # again: another process may have been faster
    tokens = {RECORD_NAME, TOKENIZER_NAME, *map(part_name, PARTS), *map(marks_name, PARTS)}
    # A process killed before it wrote the manifest leaves tokenizer.json and config.json.
    expected = {_DATA, INITIAL_WEIGHTS, TOKENIZER_CONFIG, LOCK_NAME, TOKENIZER_NAME, CONFIG_NAME, JOB_NAME}
    root = SafeFolder(folder)
    data = root / _DATA
    unexpected = [name for name in root.names() if not is_partial(name) and not (name in expected and root.has(name))]
    unexpected += [
        f"{_DATA}/{name}" for name in data.names() if not ((name in tokens or name[0] == ".") and data.has(name))
    ]
    if unexpected:
        raise FileError(
            f"{folder} is not empty: it has {', '.join(sorted(unexpected)[:3])}\nfix: choose a new folder with --out"
        )


def _corpus(
    folder: Path, sources: Sequence[str | Path], recipe: Recipe, options: Mapping[str, Any], **common: Any
) -> Corpus:
    """Open a prepared corpus, or prepare one; `common` options apply to the built-in stories too."""
    if is_prepared(sources):
        return open_corpus(sources[0])
    common |= {"tokenizer": recipe.tokenizer, "vocab_size": recipe.vocab_size if recipe.tokenizer == "bpe" else None}
    if not sources:
        return prepare_stories(folder, **common)
    return prepare(sources, folder, split=recipe.split, **options, **common)


def is_prepared(sources: Sequence[str | Path]) -> bool:
    """Whether the only source is a folder written by `prepare`."""
    return len(sources) == 1 and (Path(sources[0]) / RECORD_NAME).is_file()


def _with_tokenizer_of(source: ExternalCheckpoint, recipe: Recipe, path: Path, sources: Sequence[str | Path]) -> Recipe:
    """Write the tokenizer of a checkpoint to a file, and return the recipe that uses it."""
    tokenizer = need_tokenizer(source)
    if is_prepared(sources) and open_corpus(sources[0]).tokenizer.to_json() != tokenizer.to_json():
        raise ConfigError(
            f"{sources[0]} was prepared with another tokenizer than that of {source.path}\n"
            f"fix: pass the text itself, which is then tokenized with it"
        )
    tokenizer.save(path)
    if tokenizer.chat_template is None and source.chat_template is not None:
        tokenizer.chat_template = source.chat_template
    if tokenizer.chat_template is not None or tokenizer.template_variables:
        path.with_name(TOKENIZER_CONFIG).write_bytes(template_settings(tokenizer))
    return dataclasses.replace(recipe, tokenizer=str(path))


def _write_template(folder: SafeFolder, corpus: Corpus, source: ExternalCheckpoint | None) -> None:
    """Write the chat template beside the tokenizer, if the run learns conversations: `chat` renders them with it."""
    template = corpus.record.settings.get("chat_template")
    if isinstance(template, str):
        tokenizer = corpus.tokenizer if source is None else need_tokenizer(source)
        tokenizer.chat_template = template
        folder.write(TOKENIZER_CONFIG, template_settings(tokenizer))


def _relative(corpus: Path, run: Path) -> str:
    """The corpus path to store: relative if it is inside the run folder, otherwise absolute."""
    corpus, run = corpus.resolve(), run.resolve()
    return os.path.relpath(corpus, run) if corpus.is_relative_to(run) else str(corpus)
