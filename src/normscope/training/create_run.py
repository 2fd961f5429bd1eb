"""Create a run from text and a recipe, ready to train."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from normscope.checks import as_path, check_config, check_setting_names, short_repr
from normscope.data.batches import Batches, windows
from normscope.data.corpus import RECORD_NAME, TOKENIZER_NAME, Corpus, open_corpus, part_name
from normscope.data.prepare import prepare, prepare_stories
from normscope.data.readers import Progress
from normscope.data.sources import source_names
from normscope.data.split import PARTS
from normscope.errors import ConfigError, FileError
from normscope.models.presets import preset
from normscope.runs.config import CONFIG_NAME, RunConfig, corpus_fingerprint
from normscope.runs.run import Run, check_no_run
from normscope.runtime.devices import check_compile, resolve_device
from normscope.runtime.precision import choose_precision
from normscope.storage.files import is_partial, make_folder
from normscope.storage.lock import LOCK_NAME, locked
from normscope.storage.safe_folder import SafeFolder
from normscope.training.config import TrainConfig
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
    progress: Progress | None = None,
) -> Run:
    """Tokenize the text, write the config, and return the new run; `train_run` trains it.

    Args:
        folder: Run folder; must not contain a run yet.
        sources: Files, folders and glob patterns; one folder written by `prepare`; or empty for the built-in stories.
        recipe: Default settings.
        column, val_fraction, allow_special: See `prepare`.
        model, train: Settings that override the recipe's.
        prompt: Prompt of the samples drawn during training.
        progress: Called with the number of bytes read and the total.
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
    settings = {**recipe.model, **(model or {})}
    # Validate everything possible before tokenizing, which may take hours.
    training = check_settings(recipe, model, train)
    check_no_run(folder)
    with _locked_new_folder(folder):
        options = {"column": column, "val_fraction": val_fraction, "allow_special": allow_special}
        corpus = _corpus(folder / _DATA, sources, recipe, options, seed=training.seed, progress=progress)
        corpus.tokenizer.encode(prompt)  # raises on an unknown character
        config = RunConfig(
            corpus=_relative(corpus.folder, folder),
            fingerprint=corpus_fingerprint(corpus),
            model=preset(recipe.preset, **{**settings, "vocab_size": corpus.tokenizer.vocab_size}),
            train=training,
            prompt=prompt,
        )
        Batches(corpus.train, config.model.context, training.batch, training.seed)  # raises if the text is too short
        windows(corpus.validation, config.model.context, training.batch)
        return Run.create(folder, config, corpus.folder / TOKENIZER_NAME)


def check_settings(recipe: Recipe, model: Mapping[str, Any] | None, train: Mapping[str, Any] | None) -> TrainConfig:
    """Check the settings of a new run, as far as possible without its text, and return those of the training."""
    check_setting_names("the training", train or {}, TrainConfig)
    training = TrainConfig(**{**recipe.train, **(train or {})})
    device = resolve_device(training.device)
    choose_precision(training.precision, device)
    check_compile(training.compile, device)
    settings = {**recipe.model, **(model or {})}
    preset(recipe.preset, **settings)
    check_memory(preset(recipe.preset, **{**settings, "vocab_size": 1}), training)  # vocab_size is not known yet
    return training


@contextmanager
def _locked_new_folder(folder: Path) -> Iterator[None]:
    """Create and lock a run folder. On an error, remove everything that was created."""
    existed = [path for path in (folder, folder / _DATA) if path.is_dir()]
    make_folder(folder)
    with locked(folder):
        _check_empty(folder)
        try:
            yield
        except BaseException:
            for path in (folder / _DATA, folder):
                if path not in existed:
                    shutil.rmtree(path, ignore_errors=True)
            raise


def _check_empty(folder: Path) -> None:
    """Raise unless the folder is empty, apart from the files of an earlier attempt that was killed."""
    check_no_run(folder)  # again: another process may have been faster
    tokens = {RECORD_NAME, TOKENIZER_NAME, *map(part_name, PARTS)}
    # A process killed before it wrote the manifest leaves tokenizer.json and config.json.
    expected = {_DATA, LOCK_NAME, TOKENIZER_NAME, CONFIG_NAME}
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


def _relative(corpus: Path, run: Path) -> str:
    """The corpus path to store: relative if it is inside the run folder, otherwise absolute."""
    corpus, run = corpus.resolve(), run.resolve()
    return os.path.relpath(corpus, run) if corpus.is_relative_to(run) else str(corpus)
