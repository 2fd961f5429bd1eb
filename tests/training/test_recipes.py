"""Recipes give valid configs, and settings of the user override them."""

from itertools import pairwise
from typing import Any

import pytest

from normscope.errors import ConfigError
from normscope.models.presets import preset
from normscope.training.config import TrainConfig
from normscope.training.recipes import RECIPES, dial, recipe


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("depth", [None, 1, 3, 12])
def test_every_recipe_makes_configs(name: str, depth: int | None) -> None:
    chosen = recipe(name, depth)
    model = preset(chosen.preset, **chosen.model, vocab_size=chosen.vocab_size)
    assert model.depth == (RECIPES[name][1] if depth is None else depth)
    assert TrainConfig(**chosen.train).steps >= 100


def test_dial_scales_model_and_training_together() -> None:
    recipes = [dial(depth) for depth in (2, 4, 8, 16)]
    for small, large in pairwise(recipes):
        assert small.model["width"] < large.model["width"]
        assert small.train["steps"] <= large.train["steps"]
        assert small.train["lr"] > large.train["lr"]


@pytest.mark.parametrize("depth", [0, -1, 2.5, True])
@pytest.mark.parametrize("name", RECIPES)
def test_an_invalid_depth_is_an_error(name: str, depth: Any) -> None:
    with pytest.raises(ConfigError, match="depth="):
        preset("nanochat", **recipe(name, depth).model)


def test_an_unknown_recipe_error_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown recipe 'soup'; choose one of dial, sprint"):
        recipe("soup")


def test_only_what_is_given_is_overridden() -> None:
    base = recipe("sprint")
    assert recipe("sprint", tokenizer=None, split=None) == base
    assert recipe("sprint", split="random", vocab_size=300) != base
    assert (recipe("sprint", split="random").split, base.split) == ("random", "tail")
