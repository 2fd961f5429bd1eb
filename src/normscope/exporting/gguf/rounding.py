"""The model with the weights that a GGUF file has, and the arithmetic that llama.cpp does with them."""

import dataclasses

import torch

from normscope.exporting.gguf.architectures import architecture_of
from normscope.exporting.gguf.write import import_gguf, tensor_kind
from normscope.interop.checkpoint import model_from_weights
from normscope.models.gpt import GPT


def llama_cpp_model(model: GPT, weights: str) -> GPT:
    """Return the model that llama.cpp runs: weights rounded to a format, and the tanh approximation of GELU."""
    config = model.config
    if config.activation == "gelu":
        config = dataclasses.replace(config, activation="gelu-tanh")
    elif weights == "f32" and all(one.dtype == torch.float32 for one in model.parameters()):
        return model
    gguf, state = import_gguf(), model.state_dict()
    float32 = gguf.GGMLQuantizationType.F32
    rounded = {}
    for theirs, ours in architecture_of(model.config).named_tensors(model.config):
        for name in ours:
            if name not in state:
                continue
            values = state[name].detach().float()
            kind = tensor_kind(gguf, theirs, values, weights)
            if kind != float32:
                packed = gguf.quants.quantize(values.numpy(), kind)
                values = torch.from_numpy(gguf.quants.dequantize(packed, kind).copy())
            rounded[name] = values
    return model_from_weights(config, rounded)
