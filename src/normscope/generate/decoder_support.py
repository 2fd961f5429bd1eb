"""Which models the decoder knows: all presets, as their configs say, with no part changed and no one watching.

The kernel asks the first block about all blocks and the config about the sizes of all weights, and it is handed bare
addresses. So whatever could be otherwise is asked here, and a model that the kernel does not know is left to torch.
"""

import torch
from torch import Tensor, nn

from normscope.blocks.attention import Attention, check_heads
from normscope.blocks.block import Block
from normscope.blocks.checks import autocasts
from normscope.blocks.hooks import has_hooks
from normscope.blocks.linear import Embedding, Linear
from normscope.blocks.mlp import MLP, default_hidden
from normscope.blocks.norm.layer_and_rms import LayerNorm, RMSNorm
from normscope.blocks.norm.norm import Norm
from normscope.blocks.norm.spec import NoNorm
from normscope.blocks.residual import WIRINGS
from normscope.blocks.rotary import Rotary
from normscope.errors import ShapeError
from normscope.models.gpt import GPT, GPTConfig
from normscope.ops.kernel_mode import select_backend


def can_decode(model: nn.Module) -> bool:
    """Whether the kernel knows all that the model is made of, and no one waits for its modules to be called.

    It knows pre-wired blocks with norms over each token's width and each head, in float32 on the CPU.
    """
    return (
        type(model) is GPT
        and _is_known(model)
        and not has_hooks(*model.modules())
        and all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors_of(model))
        and select_backend(*tensors_of(model)) == "fused"
        and not autocasts(torch.device("cpu"))
    )


def tensors_of(model: nn.Module) -> list[Tensor]:
    """All that a model computes with; the rotary tables are not in its state_dict."""
    return [*model.parameters(), *model.buffers()]


def _is_known(model: GPT) -> bool:
    config = model.config
    vocabulary, context, width = config.vocab_size, config.context, config.width
    return (
        len(model.blocks) == config.depth
        and all(_is_known_block(block, config) for block in model.blocks)
        and _are_alike(model)
        and type(model.dropout) is nn.Dropout
        and _is_table(model.embedding, vocabulary, width)
        and (model.position is None or _is_table(model.position, context, width))
        and (model.head is None or _is_linear(model.head, vocabulary, width))
    )


def _is_known_block(block: nn.Module, config: GPTConfig) -> bool:
    return (
        type(block) is Block
        and block.wiring == WIRINGS["pre"]
        and len(block.norms) == 2
        and _is_known_attention(block.attention, config)
        and _is_known_mlp(block.mlp, config)
    )


def _is_known_attention(attention: nn.Module, config: GPTConfig) -> bool:
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


def _is_known_mlp(mlp: nn.Module, config: GPTConfig) -> bool:
    hidden = default_hidden(config.width, config.activation) if config.hidden is None else config.hidden
    return (
        type(mlp) is MLP
        and mlp.activation.name == config.activation
        and _is_linear(mlp.up, hidden, config.width)
        and (_is_linear(mlp.gate, hidden, config.width) if mlp.activation.gated else mlp.gate is None)
        and _is_linear(mlp.down, config.width, hidden)
        and type(mlp.dropout) is nn.Dropout
    )


def _are_alike(model: GPT) -> bool:
    """Whether what the kernel knows only once is the same in all blocks: the rotary tables, and both kinds of norm."""
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    wide = [model.final_norm, *(norm for block in blocks for norm in block.norms)]
    if type(model.embedding_norm) is not NoNorm:
        wide.append(model.embedding_norm)
    attentions = [block.attention for block in blocks]
    of_heads = [(norm, heads) for a in attentions for norm, heads in ((a.q_norm, a.heads), (a.k_norm, a.kv_heads))]
    e = attentions[0].head_dim
    return (
        all(_turn_alike(attention.rotary, attentions[0].rotary) for attention in attentions)
        and all(_is_over_its_last_axis(norm, (1, 1, model.config.width)) for norm in wide)
        and len({setting_of(norm) for norm in wide}) == 1
        and (
            all(norm is None for norm, _ in of_heads)
            or all(_is_over_its_last_axis(norm, (1, 1, heads, e)) for norm, heads in of_heads)
        )
        and len({setting_of(norm) for norm, _ in of_heads}) == 1
    )


def _turn_alike(rotary: Rotary | None, other: Rotary | None) -> bool:
    """Whether two layers turn by the same tables: by those in the same memory, as a rule."""
    if rotary is None or other is None:
        return rotary is other
    pairs = ((rotary.cos, other.cos), (rotary.sin, other.sin))
    return all(a.dtype == b.dtype and (a.data_ptr() == b.data_ptr() or torch.equal(a, b)) for a, b in pairs)


def setting_of(norm: nn.Module | None) -> tuple[str, float | None] | None:
    """What a norm computes, its weights aside; None of what is no norm."""
    return (norm.statistic, norm.eps) if isinstance(norm, Norm) else None


def _is_over_its_last_axis(norm: nn.Module | None, shape: tuple[int, ...]) -> bool:
    """Whether each row along the last axis is normalized by itself, with a gain and a bias along it or without."""
    if type(norm) not in (Norm, LayerNorm, RMSNorm) or not isinstance(norm, Norm) or norm.state:
        return False
    try:
        plan, along, _ = norm._plan_for(torch.Size(shape))
    except ShapeError:
        return False  # the model will say what does not fit
    owned = [tuple(tensor.shape) for tensor in (norm.weight, norm.bias) if tensor is not None]
    return (
        plan.reduced == (len(shape) - 1,)
        and plan.split_shape == plan.shape
        and along in ((), (*(1 for _ in shape[1:]), shape[-1]))
        and all(owner == shape[-1:] for owner in owned)
    )


def _is_linear(linear: nn.Module | None, d_out: int, d_in: int) -> bool:
    if type(linear) is not Linear:
        return False
    bias: Tensor | None = linear.bias
    return linear.weight.shape == (d_out, d_in) and (bias is None or bias.shape == (d_out,))


def _is_table(table: nn.Module, entries: int, width: int) -> bool:
    """Whether it is a plain table: with a `max_norm` it would change itself as it is read."""
    return type(table) is Embedding and table.weight.shape == (entries, width) and table.max_norm is None


def _is_rotary(rotary: nn.Module, context: int, half: int) -> bool:
    return type(rotary) is Rotary and rotary.cos.shape == rotary.sin.shape == (context, 1, half)
