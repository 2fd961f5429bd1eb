"""The model with the weights that a GGUF file has, and the arithmetic that llama.cpp does with them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.blocks.activations import Activation
from normscope.blocks.mlp import MLP
from normscope.comparing.behavior import centered, logit_distances, random_tokens
from normscope.comparing.runtime import GPTRuntime
from normscope.exporting.gguf.architectures import architecture_of, llama_cpp_config
from normscope.exporting.gguf.write import import_gguf, tensor_kind
from normscope.interop.checkpoint import model_from_weights
from normscope.interop.files.lazy_tensors import LazyTensors
from normscope.interop.gguf.architectures import ARCHITECTURES
from normscope.models.gpt import GPT

_TABLE_END = 10.0
"""llama.cpp looks GELU up for smaller inputs; beyond, it is the identity and zero."""


def _table_gelu(x: Tensor) -> Tensor:
    """GELU as llama.cpp computes it on a CPU: with a table of the tanh approximation, from float16 to float16."""
    found = F.gelu(x.half().float(), approximate="tanh").half().float()
    return torch.where(x.abs() < _TABLE_END, found, x.clamp(min=0.0))


# Other names than GELU's, so that no kernel computes them in its place.
_TABLES = {
    "gelu-tanh": Activation("gelu-table", _table_gelu),
    "geglu-tanh": Activation("geglu-table", _table_gelu, gate=lambda gate, up: _table_gelu(gate) * up),
}


_NUDGE = 1 + 2**-21
"""About the rounding error of the sums before an activation."""
_NUDGED = {
    "gelu-tanh": Activation("gelu-table", lambda x: _table_gelu(x * _NUDGE)),
    "geglu-tanh": Activation("geglu-table", _table_gelu, gate=lambda gate, up: _table_gelu(gate * _NUDGE) * up),
}


def table_noise(reference: GPT) -> float:
    """How much logits of a `llama_cpp_model` change if the inputs of its table have other rounding errors.

    An input near the middle of two float16 values may become either: an error of 1e-6 is then one of 5e-4.
    """
    name = reference.config.activation
    if name not in _TABLES:
        return 0.0
    runtime = GPTRuntime(reference)
    tokens = random_tokens(runtime, runtime)
    expected = centered(runtime.logits(tokens))
    _set_activation(reference, _NUDGED[name])
    try:
        return max(logit_distances(expected, centered(runtime.logits(tokens))))
    finally:
        _set_activation(reference, _TABLES[name])


def _set_activation(model: GPT, activation: Activation) -> None:
    for module in model.modules():
        if isinstance(module, MLP):
            module.activation = activation


def llama_cpp_model(model: GPT, weights: str) -> GPT:
    """Return the model that llama.cpp runs: weights rounded to a format, and GELU from its table."""
    config = llama_cpp_config(model.config)
    table = _TABLES.get(config.activation)
    is_exact = weights == "f32" and all(one.dtype == torch.float32 for one in model.parameters())
    if is_exact and config == model.config and table is None:
        return model
    found = model_from_weights(config, _rounded(model, weights))
    if table is not None:
        _set_activation(found, table)
    return found


def _rounded(model: GPT, weights: str) -> LazyTensors:
    """The weights of the model as a file has them."""
    gguf, table = import_gguf(), ARCHITECTURES[architecture_of(model.config)].weight_table
    theirs = table.to_theirs(model.config, model.state_dict())

    def rounded(name: str) -> Tensor:
        values, kind = theirs[name].detach().float(), tensor_kind(gguf, name, theirs.specs[name].shape, weights)
        if kind == gguf.GGMLQuantizationType.F32:
            return values
        packed = gguf.quants.quantize(values.contiguous().numpy(), kind)
        return torch.from_numpy(gguf.quants.dequantize(packed, kind).copy())

    specs = {name: spec._replace(dtype=torch.float32) for name, spec in theirs.specs.items()}
    return table.to_ours(model.config, LazyTensors(specs, rounded))
