"""Recipes: settings that go together. One dial, the depth, sets a model's size and all that follows from it."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from normscope.blocks.checks import lookup
from normscope.checks import check_positive_int
from normscope.data.tokenizers.base import DEFAULT_VOCAB_SIZE
from normscope.data.tokenizers.choose import AUTO


@dataclass(frozen=True)
class Recipe:
    """Settings of a run, each of which a user may override.

    Args:
        preset: the GPT it starts from.
        model, train: settings of the model's and of the training's config.
        vocab_size: of the tokenizer "bpe"; the tokenizer "auto" has what suits the text.
        tokenizer, split: how the text becomes tokens, and which part is kept for validation.
    """

    preset: str
    model: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = AUTO
    vocab_size: int = DEFAULT_VOCAB_SIZE
    split: Literal["random", "tail"] = "random"


def dial(depth: int) -> Recipe:
    """A model of so many blocks, with the width, the context and the training that suit it.

    Width and context are 32 a block. The number of tokens to learn from grows with the number of weights, 1.3 for each;
    Muon's rate holds for any size, and AdamW's falls with the root of the width.

    >>> small, large = dial(4), dial(8)
    >>> small.model["width"], large.model["width"], small.train["steps"], large.train["steps"]
    (128, 256, 500, 2000)
    """
    check_positive_int(depth=depth)
    width, context, batch = 32 * depth, max(64, 32 * depth), 16
    weights = 12 * depth * width**2  # of the blocks, which do nearly all of the work
    steps = max(200, round(1.3 * weights / (batch * context) / 50) * 50)
    return Recipe(
        preset="nanochat",
        # Heads of 64 where that comes out even, else of 32.
        model={"depth": depth, "width": width, "heads": depth // 2 if depth % 2 == 0 else depth, "context": context},
        train={
            "steps": steps,
            "batch": batch,
            "matrix_rate": 0.02,
            "rate": 0.01 * (128 / width) ** 0.5,
            "momentum": 0.9,
            "evaluate_every": steps // 5,
            "sample_every": steps // 5,
            "save_every": steps // 5,
        },
    )


def sprint(depth: int) -> Recipe:
    """Characters to a validation loss of 1.88 on tiny Shakespeare as soon as can be: a small model and few steps."""
    return Recipe(
        preset="nanochat",
        model={"depth": depth, "width": 96, "heads": 2, "context": 64},
        train={
            "steps": 350,
            "batch": 12,
            "matrix_rate": 0.03,
            "rate": 0.01,
            "momentum": 0.85,
            "muon_steps": 3,
            "clip": None,
        },
        tokenizer="characters",
        split="tail",
    )


RECIPES: Mapping[str, tuple[Callable[[int], Recipe], int]] = {"dial": (dial, 4), "sprint": (sprint, 2)}
"""Each with the depth that it has unless told otherwise."""


def recipe(name: str, depth: int | None = None) -> Recipe:
    """The recipe of this name."""
    make, usual = lookup("recipe", name, RECIPES)
    return make(usual if depth is None else depth)


def overridden(base: Recipe, **changes: Any) -> Recipe:
    """The recipe with some of its own fields changed; None leaves one as it is.

    >>> overridden(dial(2), tokenizer="bytes", split=None).tokenizer
    'bytes'
    """
    return dataclasses.replace(base, **{name: value for name, value in changes.items() if value is not None})
