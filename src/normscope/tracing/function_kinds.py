"""Classify torch functions by name: views, activations, linear maps, attention.

The x-ray and the drawings share these tables.
"""

import types
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch.nn.functional as F

SAME_VALUES = frozenset(
    [
        *("view", "view_as", "reshape", "reshape_as", "transpose", "permute", "contiguous", "unflatten", "flatten"),
        *("squeeze", "unsqueeze", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "T", "mT", "H", "mH", "adjoint"),
        *("alias", "ravel", "data", "detach", "clone", "requires_grad"),
        *("to", "type", "type_as", "float", "half", "bfloat16", "double", "cpu", "cuda"),
    ]
)
"""Functions that return all values of their input in another order, shape or dtype."""

SELECTIONS = frozenset(
    ["chunk", "split", "split_with_sizes", "unbind", "tensor_split", "getitem", "narrow", "select", "unfold", "real"]
)
"""Functions that return some values of their input."""

COPIES = frozenset(["expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile"])

VIEWS = SAME_VALUES | SELECTIONS | COPIES
"""Functions that compute nothing. In a drawing they change the shape on an arrow and have no box."""

SHAPE_ONLY = frozenset(
    [
        *("new_full", "new_zeros", "new_ones", "new_empty", "new_tensor"),
        *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"),
    ]
)
"""Functions that use only the shape, dtype and device of their input."""

BOUNDED_ACTIVATIONS = {
    "sigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "hardtanh": (-1.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "softsign": (-1.0, 1.0),
}
"""Bounded activations, with their lower and upper limits."""

ACTIVATIONS = frozenset(
    [
        *("relu", "relu6", "leaky_relu", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus"),
        *("hardswish", "prelu", "threshold", *BOUNDED_ACTIVATIONS),
    ]
)

ELEMENTWISE = ACTIVATIONS | {
    *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "square", "pow", "abs", "neg", "clamp", "clamp_min"),
    *("clamp_max", "erf", "logsigmoid", "reciprocal", "sin", "cos", "mul", "div", "add", "sub", "rsub", "rdiv"),
    *("masked_fill", "where"),
}

CLAMPS = frozenset(
    [
        *("clamp", "clamp_min", "clamp_max", "clip", "minimum", "maximum", "fmin", "fmax"),
        *("where", "masked_fill", "hardtanh", "relu6"),
    ]
)
"""Functions that may limit values."""

MATMULS = frozenset({"matmul", "bmm", "mm", "mv"})
ADDED_MATMULS = frozenset({"addmm", "baddbmm", "addbmm", "addmv"})
"""A matrix product plus a bias."""

CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})
TRANSPOSED_CONVOLUTIONS = frozenset({"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"})
RECURRENT = frozenset(f"{name}{cell}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") for cell in ("", "_cell"))
DROPOUTS = frozenset(
    ["dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", *(f"dropout{n}d" for n in (1, 2, 3))]
)
NORMS = frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm"})
POOLS = frozenset(
    [
        *(f"{kind}_pool{n}d" for kind in ("avg", "max", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)),
        *("interpolate", "pad"),
    ]
)
ATTENTION_FUNCTIONS = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward", "attend"})
"""`attend` is `normscope.ops.attention.attend`, whose heads come after the tokens: b s h e."""

Role = Literal["linear", "pass", "nonlinear", "other"]
_LINEAR = CONVOLUTIONS | TRANSPOSED_CONVOLUTIONS | {"linear", "addmm"}
_PASS = SAME_VALUES | COPIES | DROPOUTS | NORMS | POOLS
_NONLINEAR = ACTIVATIONS | ATTENTION_FUNCTIONS | RECURRENT | {"activate", "softmax", "glu"}

_SYNONYMS = {
    **dict.fromkeys(("true_divide", "divide", "truediv"), "div"),
    **dict.fromkeys(("multiply", "imul", "rmul"), "mul"),
    **dict.fromkeys(("iadd", "radd"), "add"),
    "subtract": "sub",
    "negative": "neg",
    "absolute": "abs",
    "rmatmul": "matmul",
    **{f"{kind}_pool{n}d_with_indices": f"{kind}_pool{n}d" for kind in ("max", "adaptive_max") for n in (1, 2, 3)},
}
_COMPOSITE = frozenset({F.multi_head_attention_forward})


def function_name(function: Any) -> str:
    """Return one name for all spellings of a torch function: "add" for `x + y`, `x += y` and `torch.add`."""
    name: str = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":  # a property, such as x.T
        name = getattr(function.__self__, "__name__", name)
    name = name.strip("_")
    return _SYNONYMS.get(name, name)


def role_of(functions: Iterable[str]) -> Role:
    """Summarize what a group of functions does to its input.

    >>> role_of(["conv2d", "batch_norm"]), role_of(["flatten"]), role_of(["linear", "relu", "linear"])
    ('linear', 'pass', 'nonlinear')
    """
    names = list(functions)
    if any(name in _NONLINEAR for name in names):
        return "nonlinear"
    linear = sum(name in _LINEAR for name in names)
    if linear > 1 or any(name not in _LINEAR and name not in _PASS for name in names):
        return "other"
    return "linear" if linear else "pass"


def decomposed(function: Any) -> Callable[..., Any] | None:
    """Return a Python copy of a composite torch function that does not dispatch to the active function mode.

    Calling the copy inside the mode shows the functions it is made of. Returns None for all other functions.
    """
    if function not in _COMPOSITE:
        return None
    namespace = {**function.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )


_SIGNS = {
    "mul": "{c} · {x}",
    "div": "{x} / {c}",
    "add": "{x} + {c}",
    "sub": "{x} - {c}",
    "rsub": "{c} - {x}",
    "rdiv": "{c} / {x}",
}


def formula(function: str, x: str, scalar_args: tuple[float | None, ...]) -> str:
    """Write an elementwise function of x as a formula.

    >>> formula("mul", formula("tanh", formula("div", "x", (None, 15.0)), ()), (None, 15.0))
    '15 · tanh(x / 15)'
    >>> formula("square", formula("relu", "x", ()), ())
    'relu(x)²'
    """
    constant = next((f"{value:g}" for value in scalar_args if value is not None), "c")
    power = {"square": "²"}.get(function) or ({"2": "²", "3": "³"}.get(constant) if function == "pow" else None)
    is_whole = x.isalnum() or (x.endswith(")") and " " not in x.partition("(")[0])
    if power:
        return f"{x if is_whole else f'({x})'}{power}"
    if function in _SIGNS:
        return _SIGNS[function].format(x=x if is_whole or function in ("add", "sub") else f"({x})", c=constant)
    return f"-{x}" if function == "neg" else f"{function}({x})"
