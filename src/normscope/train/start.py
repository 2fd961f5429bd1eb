"""From text and a recipe to a run that is ready to be trained."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from normscope.data.corpus import Corpus, open_corpus
from normscope.data.prepare import prepare
from normscope.data.reading import Progress
from normscope.data.record import RECORD_NAME
from normscope.data.story_corpus import prepare_stories
from normscope.errors import FileError
from normscope.models.presets import preset
from normscope.train.config import TrainConfig
from normscope.train.recipes import Recipe
from normscope.train.run import Run, RunConfig, fingerprint, is_run


def start(
    folder: str | Path,
    sources: Sequence[str | Path],
    recipe: Recipe,
    *,
    column: str = "text",
    share: float | None = None,
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
        column, share: see `prepare`.
        model, train: settings that override the recipe's.
        prompt: what samples during the training begin with.
        progress: is told how many bytes have been read, of how many.
    """
    folder = Path(folder)
    if is_run(folder):
        raise FileError(
            f"{folder} holds a run already, and nothing is overwritten\n"
            f"fix: normscope resume {folder}, or another folder with --out"
        )
    training = TrainConfig(**{**recipe.train, **(train or {})})  # before hours of preparation, not after
    preset(recipe.preset, **{**recipe.model, **(model or {})})
    corpus = _corpus(folder, sources, recipe, training.seed, column, share, progress)
    corpus.tokenizer.encode(prompt)  # refuses a character that is unknown
    settings = {**recipe.model, **(model or {}), "vocab_size": corpus.tokenizer.vocab_size}
    config = RunConfig(
        corpus=_relative(corpus.folder, folder),
        fingerprint=fingerprint(corpus),
        model=preset(recipe.preset, **settings),
        train=training,
        prompt=prompt,
    )
    return Run.create(folder, config)


def _corpus(
    folder: Path,
    sources: Sequence[str | Path],
    recipe: Recipe,
    seed: int,
    column: str,
    share: float | None,
    progress: Progress | None,
) -> Corpus:
    if len(sources) == 1 and (Path(sources[0]) / RECORD_NAME).is_file():
        return open_corpus(sources[0])
    data = folder / "data"
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
        share=share,
        progress=progress,
    )


def _relative(corpus: Path, run: Path) -> str:
    """A corpus inside the run moves with it; one elsewhere stays where it is."""
    inside = corpus.resolve().is_relative_to(run.resolve())
    return os.path.relpath(corpus.resolve(), run.resolve()) if inside else str(corpus.resolve())
