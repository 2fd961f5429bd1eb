"""From text and a recipe to a run that is ready to be trained."""

import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from normscope.blocks.checks import check_config
from normscope.checks import as_path, short_repr
from normscope.data.batches import Batches, windows
from normscope.data.corpus import TOKENIZER_NAME, Corpus, open_corpus, part_name
from normscope.data.corpus_record import RECORD_NAME
from normscope.data.prepare import prepare, source_names
from normscope.data.source_reader import Progress
from normscope.data.split import PARTS
from normscope.data.story_corpus import prepare_stories
from normscope.errors import ConfigError, FileError
from normscope.models.presets import preset
from normscope.runs.lock import LOCK_NAME, locked
from normscope.runs.run import CONFIG, Run, RunConfig, fingerprint, refuse_run
from normscope.runtime.compiler import check_compile
from normscope.runtime.devices import resolve_device
from normscope.runtime.precision import choose_precision
from normscope.storage.files import is_partial, make_folder
from normscope.storage.safe_folder import OwnFolder
from normscope.training.config import TrainConfig
from normscope.training.memory_estimate import refuse_too_large
from normscope.training.recipes import Recipe

_DATA = "data"


def start(
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
    """Prepare the text, write down all settings, and return the run; `train` in train/loop.py does the rest.

    Args:
        folder: the run's, which must not hold one yet.
        sources: files, folders and patterns; or one folder that `prepare` wrote; nothing for the built-in stories.
        recipe: the settings.
        column, val_fraction, allow_special: see `prepare`.
        model, train: settings that override the recipe's.
        prompt: what samples during the training begin with.
        progress: is told how many bytes have been read, of how many.
    """
    folder, sources = as_path(folder, "a run"), source_names(sources)
    check_config(recipe, Recipe, "a run", ", or with recipe()")
    for name, settings in (("model", model), ("train", train)):
        if not isinstance(settings, Mapping | None):
            raise ConfigError(f"{name}={short_repr(settings)} must be a dictionary of settings")
    if not isinstance(prompt, str):
        raise ConfigError(f"prompt={short_repr(prompt)} must be a text")
    if "vocab_size" in (model or {}):
        raise ConfigError("vocab_size is what the tokenizer has, and cannot be set\nfix: --tokenizer, --vocab-size")
    settings = {**recipe.model, **(model or {})}
    _refuse_unknown(train or {})
    # Whatever can be refused is, before hours of preparation and not after.
    training = TrainConfig(**{**recipe.train, **(train or {})})
    device = resolve_device(training.device)
    choose_precision(training.precision, device)
    check_compile(training.compile, device)
    preset(recipe.preset, **settings)
    refuse_too_large(preset(recipe.preset, **{**settings, "vocab_size": 1}), training)  # how many tokens, the text says
    refuse_run(folder)
    with _claimed(folder):
        corpus = _corpus(folder, sources, recipe, training.seed, column, val_fraction, allow_special, progress)
        corpus.tokenizer.encode(prompt)  # refuses a character that is unknown
        config = RunConfig(
            corpus=_relative(corpus.folder, folder),
            fingerprint=fingerprint(corpus),
            model=preset(recipe.preset, **{**settings, "vocab_size": corpus.tokenizer.vocab_size}),
            train=training,
            prompt=prompt,
        )
        Batches(corpus.train, config.model.context, training.batch, training.seed)  # refuses a text that is too short
        windows(corpus.validation, config.model.context, training.batch)
        return Run.create(folder, config, corpus.folder / TOKENIZER_NAME)


def _refuse_unknown(settings: Mapping[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(TrainConfig)]
    for name in settings:
        if name not in known:
            raise ConfigError(f"training has no setting {short_repr(name)}\nfix: use one of {', '.join(known)}")


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """A folder for this process alone. After an error nothing that was made is left, unless by one that was killed."""
    found = [path for path in (folder, folder / _DATA) if path.is_dir()]
    make_folder(folder)
    with locked(folder):
        _refuse_other_things(folder)
        try:
            yield
        except BaseException:
            for path in (folder / _DATA, folder):
                if path not in found:
                    shutil.rmtree(path, ignore_errors=True)
            raise


def _refuse_other_things(folder: Path) -> None:
    """A run does not mix with the files of others: it begins in an empty folder, or in one that holds its tokens."""
    refuse_run(folder)  # again, for another process may have been faster
    tokens = {RECORD_NAME, TOKENIZER_NAME, *map(part_name, PARTS)}
    usual = {_DATA, LOCK_NAME, TOKENIZER_NAME, CONFIG}  # the last two of a process that was killed before the manifest
    own = OwnFolder(folder)
    strange = [name for name in own.names() if not is_partial(name) and (name not in usual or not own.has(name))]
    data = own / _DATA
    inside = [name for name in data.names() if (name not in tokens and name[0] != ".") or not data.has(name)]
    strange += [f"{_DATA}/{name}" for name in inside]
    if strange:
        raise FileError(
            f"{folder} is not empty: it has {', '.join(sorted(strange)[:3])}\n"
            f"fix: a run needs a folder of its own; name a new one with --out"
        )


def _corpus(
    folder: Path,
    sources: Sequence[str | Path],
    recipe: Recipe,
    seed: int,
    column: str,
    val_fraction: float | None,
    allow_special: bool,
    progress: Progress | None,
) -> Corpus:
    if is_prepared(sources):
        return open_corpus(sources[0])
    data = folder / _DATA
    vocab_size = recipe.vocab_size if recipe.tokenizer == "bpe" else None
    if not sources:
        return prepare_stories(data, seed=seed, tokenizer=recipe.tokenizer, vocab_size=vocab_size, progress=progress)
    return prepare(
        sources,
        data,
        tokenizer=recipe.tokenizer,
        vocab_size=vocab_size,
        column=column,
        seed=seed,
        split=recipe.split,
        val_fraction=val_fraction,
        allow_special=allow_special,
        progress=progress,
    )


def is_prepared(sources: Sequence[str | Path]) -> bool:
    """Whether the one source that is named is a folder that `prepare` wrote."""
    return len(sources) == 1 and (Path(sources[0]) / RECORD_NAME).is_file()


def _relative(corpus: Path, run: Path) -> str:
    """A corpus inside the run moves with it; one elsewhere stays where it is."""
    inside = corpus.resolve().is_relative_to(run.resolve())
    return os.path.relpath(corpus.resolve(), run.resolve()) if inside else str(corpus.resolve())
