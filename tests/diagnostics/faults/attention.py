"""Attention that has collapsed to one key, or is uniform over all keys."""

from typing import Any

import torch
from torch import nn

from tests.diagnostics.cases import Setup, fault, two_training_steps
from tests.diagnostics.healthy.huggingface import bert, llama
from tests.diagnostics.networks import Decoder, Encoder
from tests.diagnostics.tasks import classify_stride, predict_next


@fault("attention-collapsed", "blocks.1.attention", ["outlier-weights", "abnormal-gain"])
def query_and_key_weights_too_large() -> Setup:
    """The weights themselves are outliers among the blocks, with an abnormal gain."""
    model: Any = Decoder(depth=4)
    part: Any = model.blocks[1].attention
    with torch.no_grad():
        part.query.weight.mul_(30.0)
        part.key.weight.mul_(30.0)
    return two_training_steps(model, predict_next(model))


@fault(
    "attention-collapsed",
    "model.layers.0.self_attn",
    ["differs-from-peers", "attention-unscaled"],
    needs="transformers",
)
def wrong_attention_scale() -> Setup:
    """A scale of head_dim ** 2 instead of head_dim ** -0.5."""
    model: Any = llama(width=64)
    with torch.no_grad():
        for layer in model.model.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                part.weight.normal_(std=64**-0.5)
    model.model.layers[0].self_attn.scaling = 16.0**2
    return two_training_steps(model, predict_next(model))


@fault("attention-uniform", "blocks.2.attention", ["zero-gradient"])
def query_and_key_weights_zero() -> Setup:
    """Neither gets a gradient, since each is multiplied by the other."""
    model: Any = Decoder(depth=3)
    part: Any = model.blocks[2].attention
    for layer in (part.query, part.key):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return two_training_steps(model, predict_next(model))


@fault(
    "attention-uniform",
    "bert.encoder.layer.1.attention.self",
    ["zero-gradient", "differs-from-peers"],
    needs="transformers",
)
def bert_zero_attention_scale() -> Setup:
    model: Any = bert()
    model.bert.encoder.layer[1].attention.self.scaling = 0.0
    return two_training_steps(model, classify_stride(model))


@fault("attention-uniform", "encoder.layers.0.self_attn", ["zero-gradient"])
def encoder_zero_in_projection() -> Setup:
    model: Any = Encoder()
    layer: Any = model.encoder.layers[0]
    with torch.no_grad():
        layer.self_attn.in_proj_weight[:64].zero_()
    return two_training_steps(model, classify_stride(model))
