"""The model with the weights that a GGUF file has, and the arithmetic that llama.cpp does with them."""

import torch
from torch import Tensor

from normscope.exporting.gguf.architectures import architecture_of, llama_cpp_config
from normscope.exporting.gguf.write import import_gguf, tensor_kind
from normscope.interop.checkpoint import model_from_weights
from normscope.interop.files.lazy_tensors import LazyTensors
from normscope.interop.gguf_architectures import ARCHITECTURES
from normscope.models.gpt import GPT


def llama_cpp_model(model: GPT, weights: str) -> GPT:
    """Return the model that llama.cpp runs: weights rounded to a format, and the tanh approximation of GELU."""
    config = llama_cpp_config(model.config)
    if config == model.config and weights == "f32" and all(one.dtype == torch.float32 for one in model.parameters()):
        return model
    gguf, table = import_gguf(), ARCHITECTURES[architecture_of(model.config)].weight_table
    theirs = table.to_theirs(model.config, model.state_dict())

    def rounded(name: str) -> Tensor:
        values, kind = theirs[name].detach().float(), tensor_kind(gguf, name, theirs.specs[name].shape, weights)
        if kind == gguf.GGMLQuantizationType.F32:
            return values
        packed = gguf.quants.quantize(values.contiguous().numpy(), kind)
        return torch.from_numpy(gguf.quants.dequantize(packed, kind).copy())

    specs = {name: spec._replace(dtype=torch.float32) for name, spec in theirs.specs.items()}
    return model_from_weights(config, table.to_ours(model.config, LazyTensors(specs, rounded)))
