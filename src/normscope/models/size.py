"""Parameter counts and memory checks that do not build the model."""

import math

import torch

from normscope.blocks.activations import get_activation
from normscope.blocks.block import BlockConfig
from normscope.blocks.norm.norm_spec import NormSpec, as_norm
from normscope.blocks.residual import get_wiring
from normscope.errors import ConfigError
from normscope.render.formatting import format_bytes, format_count
from normscope.runtime.memory import available_memory

MAX_BLOCKS = 4096
"""Each block costs milliseconds and tens of kilobytes of Python objects, even on the meta device. The deepest
transformer in the literature has 1,000 layers (Wang et al. 2022, "DeepNet")."""

MAX_PARAMETERS = 2**60
"""Beyond this torch overflows when it counts the bytes of a tensor."""


def check_model_size(parameters: int, *, depth: int, buffers: int = 0) -> None:
    """Raise an error if the model has too many blocks or parameters, or does not fit into memory."""
    needed = (parameters + buffers) * torch.get_default_dtype().itemsize
    free = available_memory() if torch.get_default_device().type == "cpu" else None
    if free is not None and needed > free:
        limit = f"only {format_bytes(free)} is free"
    elif parameters >= MAX_PARAMETERS:
        limit = f"no tensor can have more than {format_count(MAX_PARAMETERS)}"
    elif depth > MAX_BLOCKS:
        limit = f"at most {MAX_BLOCKS:,} blocks can be built"
    else:
        return
    raise ConfigError(
        f"this model is too large: depth={depth} with these sizes has {format_count(parameters)} parameters "
        f"({format_bytes(needed)}), but {limit}\nfix: reduce depth, width, vocab_size or context"
    )


def count_block_parameters(config: BlockConfig) -> int:
    """Return the number of parameters of all blocks and the final norm."""
    width, bias = config.width, config.bias
    heads, kv_heads, head_dim = config.head_sizes
    queries, keys = heads * head_dim, kv_heads * head_dim
    inputs, out, mlp_bias = bias in (True, "qkv", "attention"), bias in (True, "attention"), bias in (True, "mlp")
    attention = (width + inputs) * (queries + 2 * keys) + (queries + out) * width
    attention += sum(count_norm_parameters(config.qk_norm, (each, head_dim)) for each in (heads, kv_heads))
    hidden, ups = config.hidden_size, 2 if get_activation(config.activation).gated else 1
    mlp = ups * (width + mlp_bias) * hidden + (hidden + mlp_bias) * width
    norm, wiring = count_norm_parameters(config.norm, (width,)), get_wiring(config.wiring)
    return config.depth * (attention + mlp + wiring.norms * norm) + (0 if wiring.ends_normalized else norm)


def count_norm_parameters(norm: NormSpec | str | None, sizes: tuple[int, ...]) -> int:
    """Return the number of parameters of a norm over (batch, tokens, *sizes)."""
    spec = as_norm(norm)
    if spec is None:
        return 0
    built = spec.build((None, None, *sizes), device="meta")
    return sum(math.prod(parameter.shape) for parameter in built.parameters())
