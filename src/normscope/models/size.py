"""Parameter counts and memory checks that do not build the model."""

import math
from typing import Protocol

import torch

from normscope.blocks.activations import get_activation
from normscope.blocks.attention import check_heads
from normscope.blocks.block import BlockConfig
from normscope.blocks.mlp import default_hidden
from normscope.blocks.norm.named_norms import NormSpec, as_norm
from normscope.blocks.residual import get_wiring
from normscope.errors import ConfigError
from normscope.render.formatting import format_bytes, format_count
from normscope.runtime.memory import available_memory

MAX_BLOCKS = 4096
"""Each block costs milliseconds and tens of kilobytes of Python objects, even on the meta device. The deepest
transformer in the literature has 1,000 layers (Wang et al. 2022, "DeepNet")."""

MAX_PARAMETERS = 2**60
"""Beyond this torch overflows when it counts the bytes of a tensor."""


class ModelConfig(Protocol):
    """The config of a model made of blocks."""

    @property
    def depth(self) -> int: ...

    def parameter_count(self) -> int:
        """Return the number of parameters."""

    def buffer_count(self) -> int:
        """Return the number of elements of the buffers, such as rotary tables."""


def check_model_size(config: ModelConfig) -> None:
    """Raise an error if the model has too many blocks or parameters, or does not fit into memory."""
    parameters, device = config.parameter_count(), torch.get_default_device()
    needed = (parameters + config.buffer_count()) * torch.get_default_dtype().itemsize
    free = available_memory() if device.type == "cpu" else None
    fits = free is None or needed <= free
    if fits and parameters < MAX_PARAMETERS and config.depth <= MAX_BLOCKS:
        return
    there = f"only {format_bytes(free or 0)} is free"
    if fits:
        too_many = parameters >= MAX_PARAMETERS
        blocks = f"at most {MAX_BLOCKS:,} blocks can be built"
        there = f"no tensor can have more than {format_count(MAX_PARAMETERS)}" if too_many else blocks
    raise ConfigError(
        f"this model is too large: depth={config.depth} with these sizes has {format_count(parameters)} parameters "
        f"({format_bytes(needed)}), but {there}\nfix: reduce depth, width, vocab_size or context"
    )


def count_block_parameters(config: BlockConfig) -> int:
    """Return the number of parameters of all blocks and the final norm."""
    width = config.width
    heads, kv_heads, head_dim = check_heads(width, config.heads, config.kv_heads, config.head_dim)
    queries, keys = heads * head_dim, kv_heads * head_dim
    attention = count_linear_parameters(width, queries, config.bias) + 2 * count_linear_parameters(
        width, keys, config.bias
    )
    attention += count_linear_parameters(queries, width, config.bias)
    attention += sum(count_norm_parameters(config.qk_norm, (each, head_dim)) for each in (heads, kv_heads))
    hidden = default_hidden(width, config.activation) if config.hidden is None else config.hidden
    ups = 2 if get_activation(config.activation).gated else 1
    mlp = ups * count_linear_parameters(width, hidden, config.bias) + count_linear_parameters(
        hidden, width, config.bias
    )
    norm, wiring = count_norm_parameters(config.norm, (width,)), get_wiring(config.wiring)
    return config.depth * (attention + mlp + wiring.norms * norm) + (0 if wiring.ends_normalized else norm)


def count_linear_parameters(inputs: int, outputs: int, bias: bool) -> int:
    return inputs * outputs + (outputs if bias else 0)


def count_norm_parameters(norm: NormSpec | str | None, sizes: tuple[int, ...]) -> int:
    """Return the number of parameters of a norm over (batch, tokens, *sizes)."""
    spec = as_norm(norm)
    if spec is None:
        return 0
    built = spec.build((None, None, *sizes), device="meta")
    return sum(math.prod(parameter.shape) for parameter in built.parameters())
