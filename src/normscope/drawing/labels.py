"""What a drawing says: in the boxes, at the arrows, and on the frames."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from normscope.blocks.norm.spec import IMAGE_NORMS, TEXT_NORMS
from normscope.drawing.graph import GraphNode
from normscope.tracing.function_kinds import formula
from normscope.tracing.trace import ModelTrace, ModuleCall, Shape

MAX_LABEL_WIDTH = 15  # what is longer stands on two lines: three boxes and a stream fit side by side in a terminal
_ATTENTION = frozenset({"attention", "attend", "scaled_dot_product_attention", "multi_head_attention_forward"})
_KNOWN = {"rotary": "rotary positions", "getitem": "look up", "cat": "concatenate"}
_NORMS = {
    spec.scope: name
    for norms in (TEXT_NORMS, IMAGE_NORMS)
    for name, spec in norms.items()
    if spec.statistic == "standardize"
}
"""The names of the norms that standardize, by their scopes."""


@dataclass(frozen=True)
class Labels:
    """What the drawing of a trace says.

    Args:
        trace: what is drawn.
        letters: names the axes of shapes, for instance {(8, 1024, 768): "b s d"}.
        sized: of a shape with more axes than this the letters are enough, if it has any.
    """

    trace: ModelTrace
    axis_names: Mapping[Shape, str]
    max_sized_axes: int = 99

    def shape(self, shape: Shape) -> str:
        """The shape at an arrow, with letters for the axes where they are known."""
        sizes = "×".join(map(str, shape)) or "one number"
        if shape not in self.axis_names:
            return sizes
        return f"{self.axis_names[shape]} {sizes}" if len(shape) <= self.max_sized_axes else self.axis_names[shape]

    def box(self, node: GraphNode) -> tuple[str, ...]:
        """The lines in a box: its name, and what it is."""
        if node.operation == "input":
            return (node.text,)
        call = self.trace.calls[node.call]
        is_tied = node.parameters and not any(name.startswith(f"{call.path}.") for name in node.parameters)
        size = sum(self.trace.parameter_sizes[name] for name in node.parameters)
        if not node.is_module:
            name = function_label(node, [name.removeprefix(call.path).lstrip(".") for name in sorted(node.parameters)])
            return tuple(line for line in (name, attention_label(node)) if line)
        learnt = f"tied to {min(node.parameters)}" if is_tied else format_count(size) if size else ""
        what = " · ".join(part for part in (class_label(call), learnt) if part)
        whats = (what,) if len(what) <= MAX_LABEL_WIDTH else (class_label(call), learnt)
        return tuple(line for line in (module_label(call), *whats, attention_label(node)) if line)

    def reference(self, node: GraphNode) -> str:
        """What names a box that is drawn elsewhere: where it is in the model."""
        path = self.trace.calls[node.call].path
        return path if node.is_module else f"{path}: {self.box(node)[0]}".removeprefix(": ")

    def frame(self, call: ModuleCall, times: int, parameters: int, is_part: bool) -> str:
        """The title of a frame."""
        name, size = module_label(call), format_count(parameters) if parameters else "no parameters"
        if times == 1:
            return f"{name} · {size}" if is_part else f"{name} · {call.class_name} · {size}"
        first = name.removesuffix(f".{call.name}") if call.name.isdecimal() else name
        return f"× {times}  {first} · {call.class_name} · {size} each"


def class_label(call: ModuleCall) -> str:
    """The class of a module; of a norm of ours, which norm it is and over which scope."""
    scope = re.match(r"'([^']*\[[^']*)'", call.extra_repr)
    if scope is None:
        return call.class_name
    kind = "rms" if "statistic='rms'" in call.extra_repr else _NORMS.get(scope[1], call.class_name)
    return f"{kind if call.class_name == 'Norm' else call.class_name} {scope[1]}"


def module_label(call: ModuleCall) -> str:
    """The name of a module; one that is a number is nothing without the list it stands in."""
    parts = call.path.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdecimal() else parts[-1]


def function_label(node: GraphNode, parameters: list[str]) -> str:
    """What a function does."""
    if node.text:
        return node.text
    if node.operation in _ATTENTION:
        return "attention"
    if len(parameters) > 1:  # "in_proj" for in_proj_weight and in_proj_bias
        parameters = list(dict.fromkeys(re.sub(r"[._](weight|bias)$", "", name) for name in parameters))
    learnt = ", ".join(parameters)
    sign = {"add": "+", "mul": "×", "sub": "-", "div": "/"}.get(node.operation)
    if learnt:
        return f"{sign} {learnt}" if sign else f"{_KNOWN.get(node.operation, node.operation)} by {learnt}"
    constant = next((number for number in node.scalar_args if number is not None), None)
    if sign and len(node.inputs) == 1:
        return formula(node.operation, "x", node.scalar_args) if constant is not None else f"{sign} a constant"
    return sign or _KNOWN.get(node.operation, node.operation.replace("_", " "))


def attention_label(node: GraphNode) -> str:
    """How many heads attention has, and what a token sees."""
    if node.attention is None:
        return ""
    heads = node.attention.heads
    seen = "causal" if node.attention.is_causal else "masked" if node.attention.is_masked else ""
    window = f"window {node.attention.window}" if node.attention.window else ""
    parts = ["" if heads is None else f"{heads} head{'s' * (heads > 1)}", seen, window]
    return ", ".join(part for part in parts if part)


def format_count(count: int) -> str:
    """A number of parameters in few characters.

    >>> [format_count(count) for count in (768, 589_824, 7_077_888, 124_475_904, 6_738_415_616)]
    ['768', '589.8k', '7.1M', '124.5M', '6.7B']
    """
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return str(count)
