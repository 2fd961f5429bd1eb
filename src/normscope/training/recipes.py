"""Recipes: model and training settings that work together, scaled by the depth of the model."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from normscope.blocks.checks import lookup
from normscope.checks import check_positive_int
from normscope.data.tokenizers.base import DEFAULT_VOCAB_SIZE
from normscope.data.tokenizers.choose import AUTO, trains_bpe
from normscope.errors import ConfigError


@dataclass(frozen=True)
class Recipe:
    """Default settings of a run.

    Args:
        preset: Model preset: nanochat, nanochat-2026-07, gpt2 or llama.
        model, train: Settings of GPTConfig and TrainConfig.
        tokenizer: Tokenizer name, or the path of a tokenizer.json.
        vocab_size: Vocabulary size of a "bpe" tokenizer; "auto" chooses one from the text.
        split: Validation split: random chunks (random) or the end of the text (tail).
    """

    preset: str
    model: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = AUTO
    vocab_size: int = DEFAULT_VOCAB_SIZE
    split: Literal["random", "tail"] = "random"


def dial(depth: int) -> Recipe:
    """Scale model and training with the depth, as nanochat's `--depth` does.

    Width and context are 32 per block, and training reads 1.3 tokens per parameter of the blocks. Muon's learning rate
    is the same for every size, AdamW's falls with the square root of the width.

    >>> small, large = dial(4), dial(8)
    >>> small.model["width"], large.model["width"], small.train["steps"], large.train["steps"]
    (128, 256, 500, 2000)
    """
    check_positive_int(depth=depth)
    width, context, batch = 32 * depth, max(64, 32 * depth), 16
    parameters = 12 * depth * width**2  # of the blocks, which do nearly all the work
    if parameters >= 2**60:  # more than a tensor can count; the number of steps would not fit a file either
        raise ConfigError(f"depth={depth} is too large: the blocks have {parameters:.1e} parameters\nfix: try depth=12")
    steps = max(200, round(1.3 * parameters / (batch * context) / 50) * 50)
    return Recipe(
        preset="nanochat",
        # Head size 64 if the depth is even, otherwise 32.
        model={"depth": depth, "width": width, "heads": depth // 2 if depth % 2 == 0 else depth, "context": context},
        train={
            "steps": steps,
            "batch": batch,
            "matrix_lr": 0.02,
            "lr": 0.01 * (128 / width) ** 0.5,
            "momentum": 0.9,
            "eval_every": steps // 5,
            "sample_every": steps // 5,
            "save_every": steps // 5,
        },
    )


def sprint(depth: int) -> Recipe:
    """A small character model that reaches a validation loss of 1.88 on tiny Shakespeare as fast as possible."""
    return Recipe(
        preset="nanochat",
        model={"depth": depth, "width": 96, "heads": 2, "context": 64},
        train={
            "steps": 400,
            "batch": 12,
            "matrix_lr": 0.03,
            "lr": 0.01,
            "momentum": 0.85,
            "ns_steps": 3,
            "grad_clip": None,
        },
        tokenizer="characters",
        split="tail",
    )


def finetune(lora: bool) -> Recipe:
    """Continue from the weights of another model, which also gives the architecture and the tokenizer.

    AdamW with a low learning rate, since Muon's orthogonalized updates would move every direction of a weight equally.
    Adapters start at zero and take a tenfold rate.
    """
    lr = 5e-4 if lora else 5e-5
    return Recipe(
        preset="",
        train={
            "steps": 200,
            "batch": 4,
            "optimizer": "adamw",
            "matrix_lr": lr,
            "lr": lr,
            "beta1": 0.9,
            "beta2": 0.999,
            "warmup": 0.05,
            "decay": 0.95,
            "eval_every": 50,
            "sample_every": 50,
            "save_every": 50,
        },
    )


RECIPES: Mapping[str, tuple[Callable[[int], Recipe], int]] = {"dial": (dial, 4), "sprint": (sprint, 2)}
"""Recipe function and default depth, by name."""


def recipe(name: str, depth: int | None = None, **changes: Any) -> Recipe:
    """Look up a recipe and replace fields; None keeps a field.

    A vocabulary size implies the tokenizer "bpe" unless one is named.

    >>> recipe("dial", 2, tokenizer="bytes", split=None).tokenizer, recipe("dial", 2, vocab_size=512).tokenizer
    ('bytes', 'bpe')
    """
    make, default_depth = lookup("recipe", name, RECIPES)
    given = {field: value for field, value in changes.items() if value is not None}
    chosen = dataclasses.replace(make(default_depth if depth is None else depth), **given)
    trains = trains_bpe(chosen.tokenizer, given.get("vocab_size"))
    return dataclasses.replace(chosen, tokenizer="bpe") if trains else chosen
