"""The least memory that a run takes, known before it is asked for: systems kill who asks for too much, in silence."""

from normscope.errors import ConfigError
from normscope.models.gpt import GPTConfig
from normscope.models.size import check_model_size
from normscope.render.formatting import format_bytes, format_count
from normscope.runtime.devices import resolve_device
from normscope.runtime.memory import memory_free
from normscope.training.config import TrainConfig

_ACTIVATIONS = 12
"""Numbers that a block keeps for the way back, for each token and unit of width: half of what is measured."""


def refuse_too_large(model: GPTConfig, train: TrainConfig) -> None:
    """Refuse what cannot fit in the memory that is free. What might fit is let through: this is a bound from below."""
    free = memory_free()
    if free is None or resolve_device(train.device).type != "cpu":  # others refuse by themselves, with an error
        check_model_size(model)
        return
    fixed, window = weights_memory(model), window_memory(model, train)
    at_once = min(train.micro_batch or train.batch, train.batch)
    if fixed + at_once * window <= free:
        check_model_size(model)  # so many blocks that building them takes minutes may still fit
        return
    fits = (free - fixed) // (2 * window)
    fix = (
        f"--micro-batch {fits} at most, which gives the same result"
        if fits > 0
        else "a smaller --depth, --width or --context"
    )
    raise ConfigError(
        f"there is not enough memory: weights, gradients and optimiser of {format_count(model.parameter_count())} "
        f"parameters take {format_bytes(fixed)}, and {at_once} windows of {model.context} tokens "
        f"{format_bytes(at_once * window)} at least, but {format_bytes(free)} are free\nfix: {fix}"
    )


def weights_memory(model: GPTConfig) -> int:
    """The bytes of weights, gradients and of one number that the optimiser remembers for each, and of tables."""
    return 4 * (3 * model.parameter_count() + model.buffer_count())


def window_memory(model: GPTConfig, train: TrainConfig) -> int:
    """The bytes that one window of text keeps until its gradients are there, at least."""
    numbers = model.context * (_ACTIVATIONS * model.depth * model.width + model.vocab_size)
    return numbers * (2 if train.precision == "bfloat16" else 4)
