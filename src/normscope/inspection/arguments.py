"""Helpers shared by `xray_target` and `draw_target`: argument checks, folder types, RNG state."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from normscope.checks import MAX_SIZE, is_integer, short_repr
from normscope.errors import ConfigError

Shape = tuple[int, ...]


def check_model_settings(model: object, **given_elsewhere: str) -> None:
    """Check model settings: a dict by name, without those that are also given in another way.

    >>> check_model_settings({"depth": 2}, depth="depth=4")
    Traceback (most recent call last):
    normscope.errors.ConfigError: the model setting depth=2 is also given as depth=4
    fix: give it once
    """
    if not isinstance(model, Mapping) or not all(isinstance(name, str) for name in model):
        raise ConfigError(f"model={short_repr(model)} must be a dict of settings")
    for name, elsewhere in given_elsewhere.items():
        if name in model:
            raise ConfigError(
                f"the model setting {name}={short_repr(model[name])} is also given as {elsewhere}\nfix: give it once"
            )


def check_shape(shape: object) -> Shape:
    """Check the shape of an input: some positive sizes, for a tensor that could exist."""
    if not isinstance(shape, Sequence) or not all(is_integer(size, least=0) for size in shape):
        raise ConfigError(f"a shape is a tuple of sizes, but got {short_repr(shape)}\nfix: use positive sizes")
    if 0 in shape or math.prod(shape) > MAX_SIZE:
        problem = "has a size of zero" if 0 in shape else "is too large"
        raise ConfigError(f"a shape of {','.join(map(short_repr, shape))} {problem}\nfix: use positive sizes")
    return tuple(map(int, shape))


def preserve_rng() -> AbstractContextManager[None]:
    """Restore the RNG states of torch: loading a model, running it and user code change them."""
    import torch  # not needed by what checks the options of a command

    return torch.random.fork_rng(devices=range(torch.cuda.device_count()))
