"""Which models the fused decoder supports: unmodified GPTs of the presets' architectures, without hooks.

The kernel takes the structure of all blocks from the first one, all sizes from the config, and raw addresses. So
everything it relies on is checked here; a model that fails a check runs in torch.
"""

import torch
from torch import Tensor, nn

from normscope.blocks.attention import Attention, check_heads
from normscope.blocks.block import Block
from normscope.blocks.checks import autocasts
from normscope.blocks.hooks import has_hooks
from normscope.blocks.linear import Embedding, Linear
from normscope.blocks.mlp import MLP, default_hidden
from normscope.blocks.norm import LayerNorm, RMSNorm
from normscope.blocks.norm.base import Norm
from normscope.blocks.norm.named_norms import NoNorm
from normscope.blocks.residual import WIRINGS
from normscope.blocks.rotary import Rotary
from normscope.errors import ShapeError
from normscope.models.gpt import GPT, GPTConfig
from normscope.ops.kernel_mode import select_backend
from normscope.ops.norm.statistic import Statistic

KERNEL_ACTIVATIONS = ("relu2", "relu", "gelu", "gelu-tanh", "silu")
"""The activations of the kernel, numbered as in `normscope.ops.fused.decode_step`."""
GATES = {"swiglu": "silu", "reglu": "relu", "geglu": "gelu"}
"""Gated activations, and the activation of their gate."""


def can_decode(model: nn.Module) -> bool:
    """Whether the fused decoder can run the model with the same result.

    It supports pre-norm blocks with norms over the width and over each head, in float32 on the CPU, without hooks.
    """
    return (
        type(model) is GPT
        and _supports_architecture(model)
        and not has_hooks(*model.modules())
        and all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in parameters_and_buffers(model))
        and select_backend(*parameters_and_buffers(model)) == "fused"
        and not autocasts(torch.device("cpu"))
    )


def parameters_and_buffers(model: nn.Module) -> list[Tensor]:
    """All tensors of a model, including rotary tables, which are not in its state_dict."""
    return [*model.parameters(), *model.buffers()]


def _supports_architecture(model: GPT) -> bool:
    config = model.config
    vocabulary, context, width = config.vocab_size, config.context, config.width
    return (
        len(model.blocks) == config.depth
        and all(_supports_block(block, config) for block in model.blocks)
        and _blocks_are_uniform(model)
        and type(model.dropout) is nn.Dropout
        and _is_plain_embedding(model.embedding, vocabulary, width)
        and (model.position is None or _is_plain_embedding(model.position, context, width))
        and (model.head is None or _is_linear(model.head, vocabulary, width))
    )


def _supports_block(block: nn.Module, config: GPTConfig) -> bool:
    return (
        type(block) is Block
        and block.wiring == WIRINGS["pre"]
        and len(block.norms) == 2
        and _supports_attention(block.attention, config)
        and _supports_mlp(block.mlp, config)
    )


def _supports_attention(attention: nn.Module, config: GPTConfig) -> bool:
    heads, kv_heads, e = check_heads(config.width, config.heads, config.kv_heads, config.head_dim)
    return (
        type(attention) is Attention
        and (attention.heads, attention.kv_heads, attention.head_dim) == (heads, kv_heads, e)
        and attention.causal
        and attention.window == config.window
        and _is_linear(attention.q, heads * e, config.width)
        and _is_linear(attention.k, kv_heads * e, config.width)
        and _is_linear(attention.v, kv_heads * e, config.width)
        and _is_linear(attention.out, config.width, heads * e)
        and type(attention.dropout) is nn.Dropout
        and (attention.rotary is None or _is_rotary(attention.rotary, config.context, e // 2))
    )


def _supports_mlp(mlp: nn.Module, config: GPTConfig) -> bool:
    hidden = default_hidden(config.width, config.activation) if config.hidden is None else config.hidden
    return (
        type(mlp) is MLP
        and mlp.activation.name == config.activation
        and GATES.get(config.activation, config.activation) in KERNEL_ACTIVATIONS
        and _is_linear(mlp.up, hidden, config.width)
        and (_is_linear(mlp.gate, hidden, config.width) if mlp.activation.gated else mlp.gate is None)
        and _is_linear(mlp.down, config.width, hidden)
        and type(mlp.dropout) is nn.Dropout
    )


def _blocks_are_uniform(model: GPT) -> bool:
    """Whether everything that the kernel stores once is the same in all blocks: rotary tables, norms, QK-norms."""
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    width_norms = [model.final_norm, *(norm for block in blocks for norm in block.norms)]
    if type(model.embedding_norm) is not NoNorm:
        width_norms.append(model.embedding_norm)
    attentions = [block.attention for block in blocks]
    head_norms = [(norm, heads) for a in attentions for norm, heads in ((a.q_norm, a.heads), (a.k_norm, a.kv_heads))]
    e = attentions[0].head_dim
    return (
        all(_same_rotary(attention.rotary, attentions[0].rotary) for attention in attentions)
        and all(_normalizes_last_axis(norm, (1, 1, model.config.width)) for norm in width_norms)
        and len({norm_settings(norm) for norm in width_norms}) == 1
        and (
            all(norm is None for norm, _ in head_norms)
            or all(_normalizes_last_axis(norm, (1, 1, heads, e)) for norm, heads in head_norms)
        )
        and len({norm_settings(norm) for norm, _ in head_norms}) == 1
    )


def _same_rotary(rotary: Rotary | None, other: Rotary | None) -> bool:
    """Whether two layers use equal rotary tables; usually they share the memory."""
    if rotary is None or other is None:
        return rotary is other
    pairs = ((rotary.cos, other.cos), (rotary.sin, other.sin))
    return all(a.dtype == b.dtype and (a.data_ptr() == b.data_ptr() or torch.equal(a, b)) for a, b in pairs)


def norm_settings(norm: nn.Module | None) -> tuple[Statistic, float | None] | None:
    """Statistic and eps of a norm; None for other modules."""
    return (norm.statistic, norm.eps) if isinstance(norm, Norm) and norm.statistic.has_kernels else None


def _normalizes_last_axis(norm: nn.Module | None, shape: tuple[int, ...]) -> bool:
    """Whether the norm is over the last axis only, with optional weight and bias along it."""
    if type(norm) not in (Norm, LayerNorm, RMSNorm) or not isinstance(norm, Norm) or norm.state:
        return False
    try:
        plan, along, _ = norm._plan_for(torch.Size(shape))
    except ShapeError:
        return False  # the model raises the error
    shapes = [tuple(tensor.shape) for tensor in (norm.weight, norm.bias) if tensor is not None]
    return (
        plan.reduced == (len(shape) - 1,)
        and plan.split_shape == plan.shape
        and along in ((), (*(1 for _ in shape[1:]), shape[-1]))
        and all(own == shape[-1:] for own in shapes)
    )


def _is_linear(linear: nn.Module | None, d_out: int, d_in: int) -> bool:
    if type(linear) is not Linear:
        return False
    bias: Tensor | None = linear.bias
    return linear.weight.shape == (d_out, d_in) and (bias is None or bias.shape == (d_out,))


def _is_plain_embedding(table: nn.Module, num_embeddings: int, width: int) -> bool:
    """Whether it is a plain lookup table: `max_norm` would modify the weight at each lookup."""
    return type(table) is Embedding and table.weight.shape == (num_embeddings, width) and table.max_norm is None


def _is_rotary(rotary: nn.Module, context: int, half: int) -> bool:
    return type(rotary) is Rotary and rotary.cos.shape == rotary.sin.shape == (context, 1, half)
