"""Estimate the memory a run needs before it allocates any: Linux kills a process that asks for too much."""

from normscope.errors import ConfigError
from normscope.models.gpt import GPTConfig
from normscope.ops.linear_cross_entropy import LARGE
from normscope.render.formatting import format_bytes, format_count
from normscope.runs.initial_weights import empty_model, set_trainable
from normscope.runtime.devices import resolve_device
from normscope.runtime.memory import available_memory
from normscope.runtime.ranks import ALONE, Ranks, joined_ranks
from normscope.training.config import TrainConfig

_ACTIVATIONS = 12
"""Values a block saves for the backward pass, per token and unit of width: half of what is measured."""


def check_memory(model: GPTConfig, train: TrainConfig) -> None:
    """Raise if a run cannot fit into the available memory. This is a lower bound: a run that passes may still fail.

    Ranks of one machine share its memory. Each has the rows of every micro-batch that it computes.
    """
    free = available_memory()
    if free is None or resolve_device(train.device).type != "cpu":  # an accelerator raises an error of its own
        model.check_size()
        return
    ranks = joined_ranks()
    fixed, window = weights_memory(model, train, ranks), window_memory(model, train)
    # What the ranks of this machine have of a micro-batch.
    micro_batch = -(-min(train.micro_batch or train.batch, train.batch) * ranks.local_size // ranks.size)
    if fixed + micro_batch * window <= free:
        model.check_size()  # so many blocks that building them takes minutes may still fit
        return
    fits = (free - fixed) // (2 * window) * ranks.size // ranks.local_size
    smaller = f"--micro-batch {fits} or less, which gives the same result"
    fix = smaller if fits > 0 else "a smaller --depth, --width or --context"
    raise ConfigError(
        f"not enough memory: weights, gradients and optimizer state of {format_count(model.parameter_count())} "
        f"parameters need {format_bytes(fixed)}, activations of {micro_batch} windows of {model.context} tokens at "
        f"least {format_bytes(micro_batch * window)}, but {format_bytes(free)} are available\nfix: {fix}"
    )


def weights_memory(model: GPTConfig, train: TrainConfig, ranks: Ranks = ALONE) -> int:
    """Bytes of weights, lookup tables, and for each trained parameter a gradient and one optimizer state.

    With several ranks, on all of this machine together: DDP has weights and gradients on each.
    """
    trained = trained_parameters(model, train)
    weights, shared = model.parameter_count() + trained, trained
    if train.parallel == "fsdp":
        weights, shared = 0, shared + weights
    return 4 * (ranks.local_size * (weights + model.buffer_count()) + shared * ranks.local_size // ranks.size)


def trained_parameters(model: GPTConfig, train: TrainConfig) -> int:
    """The number of parameters that a run trains: adapters are counted, frozen ones are not."""
    if train.lora is None and train.freeze is None:
        return model.parameter_count()
    empty = empty_model(model)
    set_trainable(empty, train)
    return sum(parameter.numel() for parameter in empty.parameters() if parameter.requires_grad)


def window_memory(model: GPTConfig, train: TrainConfig) -> int:
    """Lower bound of the bytes of activations that one window of text keeps for the backward pass."""
    windows = min(train.micro_batch or train.batch, train.batch)
    logits = min(model.context * model.vocab_size, LARGE // windows)  # more are computed in chunks
    values = model.context * _ACTIVATIONS * model.depth * model.width + logits
    return values * (2 if train.precision == "bfloat16" else 4)


def describe_memory(model: GPTConfig, train: TrainConfig) -> dict[str, int]:
    """Bytes of each kind of memory that a run takes, by formula: what of it can be saved, and how.

    Muon keeps one number for each parameter, AdamW two. Activations are about twice their lower bound.
    """
    trained = trained_parameters(model, train)
    adapters = trained if train.lora is not None else 0
    states = 1 if train.optimizer == "muon" and not adapters else 2
    windows = min(train.micro_batch or train.batch, train.batch)
    return {
        "weights": 4 * (model.parameter_count() + adapters + model.buffer_count()),
        "gradients": 4 * trained,
        "optimizer": 4 * states * trained,
        "activations": 2 * windows * window_memory(model, train),
    }
