"""Attention maps: which earlier tokens each head of a GPT looks at."""

from functools import partial

import torch
from torch import Tensor

from normscope.blocks.attention import Attention
from normscope.blocks.block import Block
from normscope.blocks.residual import MaskedNorm
from normscope.generate.model_runner import eval_inference_mode
from normscope.generate.tokens import check_model
from normscope.models.gpt import GPT


def attention_maps(model: GPT, tokens: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return the attention weights of every head of every block, (depth, b, heads, s, t).

    `maps[layer, b, head, i, j]` is the weight of key j for query i; each row sums to 1. Norms, rotary embedding,
    grouped queries and the window are those of the model. The model runs in eval mode, without gradients, and is left
    as it was.

    Args:
        model: A GPT.
        tokens: Token ids, (b, s).
        mask: (b, s), True at real tokens; a padding token attends to itself and to the real tokens before it.

    >>> from normscope.models.presets import nanochat
    >>> model = GPT(nanochat(vocab_size=65, context=32, depth=2, width=64, heads=4))
    >>> maps = attention_maps(model, torch.tensor([[1, 2, 3]]))
    >>> maps.shape, maps[0, 0, 0, 0].tolist()  # the first token can only attend to itself
    (torch.Size([2, 1, 4, 3, 3]), [1.0, 0.0, 0.0])
    """
    check_model(model)
    maps: list[Tensor] = []

    def attend(attention: Attention, values: Tensor | None, x: Tensor) -> Tensor:
        maps.append(attention.attention_weights(x, mask))
        y: Tensor = attention(x, mask=mask, values=values)
        return y

    # The wirings take the branches as functions: no hooks, so other threads may use the model at the same time.
    def run_block(block: Block, x: Tensor, values: Tensor | None) -> Tensor:
        norms = [MaskedNorm(norm, mask) for norm in block.norms]
        return block.wiring.join(x, partial(attend, block.attention, values), block.mlp, norms)

    with eval_inference_mode(list(model.modules())):
        for _ in model.residual_streams(tokens, mask=mask, run_block=run_block):
            pass
    return torch.stack(maps)
