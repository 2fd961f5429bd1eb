"""The layers of a GPT as nodes of an ONNX graph: each function computes what the layer computes, on symbolic values."""

import math
from collections.abc import Callable

from torch import Tensor, nn

from normscope.blocks.gate import Gate
from normscope.blocks.linear import Linear
from normscope.blocks.mix import Mix
from normscope.blocks.mlp import MLP
from normscope.blocks.norm.base import Norm
from normscope.errors import ConfigError
from normscope.exporting.onnx.graph import Value
from normscope.ops.norm.statistic import RMS, STANDARDIZE
from normscope.scope.grammar import SplitDimension, flatten_axes

_FLOAT32_EPS = 2.0**-23


def linear(name: str, layer: Linear, x: Value) -> Value:
    y = x @ x.graph.weight(f"{name}.weight", layer.weight.t())
    return y if layer.bias is None else y + x.graph.weight(f"{name}.bias", layer.bias)


def gate(name: str, layer: Gate, x: Value) -> Value:
    return linear(name, layer, x.slice(0, layer.in_features, -1)).apply("Sigmoid") * layer.maximum


def mix(name: str, layer: Mix, x: Value, y: Value) -> Value:
    x = x if layer.a is None else x * x.graph.weight(f"{name}.a", layer.a)
    return x + y * x.graph.weight(f"{name}.b", layer.b)


def mlp(name: str, layer: MLP, x: Value) -> Value:
    up = linear(f"{name}.up", layer.up, x)
    if layer.gate is None:
        hidden = ACTIVATIONS[layer.activation.name](up)
    else:
        hidden = ACTIVATIONS[GATES[layer.activation.name]](linear(f"{name}.gate", layer.gate, x)) * up
    return linear(f"{name}.down", layer.down, hidden)


def norm(name: str, layer: nn.Module | None, x: Value, sizes: tuple[int, ...]) -> Value:
    """Normalize x (b, s, *sizes), as in eval mode."""
    if not isinstance(layer, Norm):
        return x
    plan = layer.scope.bind((2, 3, *sizes), **layer.sizes)  # any batch and length: neither is split
    graph, features = x.graph, plan.split_shape[2:]

    def over(part: str, tensor: Tensor | None, axes: tuple[str, ...]) -> Value | None:
        """A parameter or buffer in a shape that broadcasts over the features."""
        return None if tensor is None else graph.weight(f"{name}.{part}", tensor.reshape(plan.broadcast_shape(axes)))

    y = x if features == sizes else x.reshape(0, 0, *features)
    mean = over("running_mean", layer.running_mean, layer.tracked)
    second = layer.running_square if layer.running_var is None else layer.running_var
    moment = over("running_moment", second, layer.tracked)
    if moment is None and layer.statistic.centers:
        mean = y.mean(plan.reduced)
    y = y if mean is None else y - mean
    moment = (y * y).mean(plan.reduced) if moment is None else moment
    y = y / (moment + (_FLOAT32_EPS if layer.eps is None else layer.eps)).apply("Sqrt")
    along = () if layer.axes is None else layer.axes.names
    gain, bias = over("weight", layer.weight, along), over("bias", layer.bias, along)
    y = y if gain is None else y * gain
    y = y if bias is None else y + bias
    return y if features == sizes else y.reshape(0, 0, *sizes)


def check_norm(field: str, layer: nn.Module | None) -> None:
    """Raise a ConfigError that names the field of the config if a norm of (b, s, ...) cannot be in a graph."""
    if not isinstance(layer, Norm):
        return
    rank = {"norm": 3, "qk_norm": 4}[field]
    outer = layer.scope.dimensions(rank)[:2]
    problem = None
    if layer.statistic not in (STANDARDIZE, RMS):
        problem = f"its statistic {layer.statistic.name!r} is not known"
    elif layer.state is None and layer.scope.brackets(1, rank):
        problem = "it shares statistics between tokens, so that tokens cannot be cached"
    elif any(
        isinstance(one, SplitDimension) or axis.name in layer.sizes for one in outer for axis in flatten_axes([one])
    ):
        problem = "it gives sizes to the batch or the tokens, which vary"
    if problem is not None:
        raise ConfigError(
            f"an ONNX graph with a KV cache cannot represent {field}={str(layer.scope)!r}: {problem}\n"
            f"fix: train with a norm over the features of a token, such as --model {field}=rms"
        )


def _gelu(x: Value) -> Value:
    return x * ((x / math.sqrt(2)).apply("Erf") + 1.0) * 0.5


def _gelu_tanh(x: Value) -> Value:
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * (inner.apply("Tanh") + 1.0) * 0.5


def _relu2(x: Value) -> Value:
    positive = x.apply("Relu")
    return positive * positive


ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "relu2": _relu2,
    "relu": lambda x: x.apply("Relu"),
    "gelu": _gelu,
    "gelu-tanh": _gelu_tanh,
    "silu": lambda x: x * x.apply("Sigmoid"),
}
GATES = {"swiglu": "silu", "reglu": "relu", "geglu": "gelu", "geglu-tanh": "gelu-tanh"}
"""The activation of the gate of each gated activation."""
