"""Attention that cannot look, or cannot look elsewhere."""

from typing import Any

import torch
from torch import nn

from tests.diagnostics.cases import Scene, fault, running
from tests.diagnostics.healthy.foreign import bert, llama
from tests.diagnostics.networks import Decoder, Encoder
from tests.diagnostics.tasks import count_up, predict


@fault("attention-collapsed", "blocks.1.attention", ["outlier-weights", "abnormal-gain"])
def queries_and_keys_far_too_large() -> Scene:
    """By themselves they are far from those of the other blocks, and from theory."""
    model: Any = Decoder(depth=4)
    part: Any = model.blocks[1].attention
    with torch.no_grad():
        part.query.weight.mul_(30.0)
        part.key.weight.mul_(30.0)
    return running(model, predict(model))


@fault("attention-collapsed", "model.layers.0.self_attn", needs="transformers")
def scores_that_are_not_scaled() -> Scene:
    """A scale of head width squared where one over its root is meant."""
    model: Any = llama(width=64)
    with torch.no_grad():
        for layer in model.model.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                part.weight.normal_(std=64**-0.5)
    model.model.layers[0].self_attn.scaling = 16.0**2
    return running(model, predict(model))


@fault("attention-uniform", "blocks.2.attention", ["zero-gradient"])
def queries_and_keys_both_zero() -> Scene:
    """Neither gets a gradient, for each is multiplied by the other."""
    model: Any = Decoder(depth=3)
    part: Any = model.blocks[2].attention
    for layer in (part.query, part.key):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return running(model, predict(model))


@fault("attention-uniform", "bert.encoder.layer.1.attention.self", ["zero-gradient"], needs="transformers")
def bert_whose_scores_are_scaled_by_zero() -> Scene:
    model: Any = bert()
    model.bert.encoder.layer[1].attention.self.scaling = 0.0
    return running(model, count_up(model))


@fault("attention-uniform", "encoder.layers.0.self_attn", ["zero-gradient"])
def encoder_with_projections_of_zero() -> Scene:
    model: Any = Encoder()
    layer: Any = model.encoder.layers[0]
    with torch.no_grad():
        layer.self_attn.in_proj_weight[:64].zero_()
    return running(model, count_up(model))
