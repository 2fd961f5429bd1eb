"""What torch's functions are to a drawing: those that only look at a tensor in another way, those that make one from
nothing but its shape, and those that work on every number by itself."""

from typing import Any

# The same numbers in another order, shape or type; a part of them; or several copies.
VIEWS = frozenset(
    [
        "view",
        "view_as",
        "reshape",
        "reshape_as",
        "transpose",
        "permute",
        "contiguous",
        "to",
        "type",
        "type_as",
        "float",
        "half",
        "bfloat16",
        "double",
        "clone",
        "detach",
        "unflatten",
        "flatten",
        "squeeze",
        "unsqueeze",
        "expand",
        "expand_as",
        "broadcast_to",
        "chunk",
        "split",
        "split_with_sizes",
        "unbind",
        "tensor_split",
        "getitem",
        "narrow",
        "select",
        "unfold",
        "movedim",
        "moveaxis",
        "swapaxes",
        "swapdims",
        "t",
        "T",
        "mT",
        "H",
        "mH",
        "adjoint",
        "alias",
        "repeat",
        "repeat_interleave",
        "tile",
        "ravel",
        "requires_grad",
        "cpu",
        "cuda",
        "data",
        "real",
    ]
)

# Of the tensor they are given these use the shape, the type and the device alone.
SHAPE_ONLY = frozenset(
    [
        "new_full",
        "new_zeros",
        "new_ones",
        "new_empty",
        "new_tensor",
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "rand_like",
        "randn_like",
    ]
)

ELEMENTWISE = frozenset(
    [
        "relu",
        "relu6",
        "gelu",
        "silu",
        "sigmoid",
        "tanh",
        "exp",
        "expm1",
        "log",
        "log1p",
        "sqrt",
        "rsqrt",
        "square",
        "pow",
        "abs",
        "neg",
        "clamp",
        "clamp_min",
        "clamp_max",
        "softplus",
        "erf",
        "leaky_relu",
        "elu",
        "selu",
        "celu",
        "hardswish",
        "hardsigmoid",
        "hardtanh",
        "mish",
        "softsign",
        "logsigmoid",
        "reciprocal",
        "sin",
        "cos",
        "mul",
        "div",
        "add",
        "sub",
        "rsub",
        "rdiv",
        "true_divide",
        "masked_fill",
        "where",
    ]
)

MATMULS = frozenset({"matmul", "bmm", "mm", "einsum"})
ATTENTION_FUNCTIONS = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward", "attend"})
"""The last is normscope's own, whose heads come after the tokens: b s h e."""

_SIGNS = {"mul": "{c} · {x}", "div": "{x} / {c}", "add": "{x} + {c}", "sub": "{x} - {c}", "rsub": "{c} - {x}"}
_SIGNS["rdiv"] = "{c} / {x}"
_SAME = {
    "true_divide": "div",
    "multiply": "mul",
    "divide": "div",
    "subtract": "sub",
    "negative": "neg",
    "absolute": "abs",
}


def function_name(function: Any) -> str:
    """The name of a function of torch's, one for all its ways: add for `x + y`, `x += y`, `torch.add`."""
    name: str = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":  # a property, such as x.T
        name = getattr(function.__self__, "__name__", name)
    name = name.strip("_")
    for prefix in ("i", "r"):  # __iadd__, __radd__, which torch itself calls add
        if name.removeprefix(prefix) in ("add", "mul") and name != name.removeprefix(prefix):
            name = name.removeprefix(prefix)
    return _SAME.get(name, name)


def formula(function: str, x: str, numbers: tuple[float | None, ...]) -> str:
    """The function of x, written down.

    >>> formula("mul", formula("tanh", formula("div", "x", (None, 15.0)), ()), (None, 15.0))
    '15 · tanh(x / 15)'
    >>> formula("square", formula("relu", "x", ()), ())
    'relu(x)²'
    """
    constant = next((f"{number:g}" for number in numbers if number is not None), "c")
    power = {"square": "²"}.get(function) or ({"2": "²", "3": "³"}.get(constant) if function == "pow" else None)
    is_whole = x.isalnum() or (x.endswith(")") and " " not in x.partition("(")[0])
    if power:
        return f"{x if is_whole else f'({x})'}{power}"
    if function in _SIGNS:
        return _SIGNS[function].format(x=x if is_whole or function in ("add", "sub") else f"({x})", c=constant)
    return f"-{x}" if function == "neg" else f"{function}({x})"
