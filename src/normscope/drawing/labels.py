"""Labels of a drawing: in boxes, on arrows and on frames."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from normscope.blocks.norm.norm_spec import IMAGE_NORMS, TEXT_NORMS
from normscope.drawing.graph import GraphNode
from normscope.render.formatting import format_compact
from normscope.tracing.function_kinds import ATTENTION_FUNCTIONS, formula
from normscope.tracing.trace import ModelTrace, ModuleCall, Shape

MAX_LABEL_WIDTH = 15  # longer labels take two lines, so that three boxes and a stream fit side by side in a terminal
_ATTENTION = ATTENTION_FUNCTIONS | {"attention"}
_KNOWN = {"rotary": "rotary positions", "getitem": "look up", "cat": "concatenate"}
_NORMS = {
    spec.scope: name
    for norms in (TEXT_NORMS, IMAGE_NORMS)
    for name, spec in norms.items()
    if spec.statistic == "standardize"
}
"""The names of the norms that standardize, by scope."""


@dataclass(frozen=True)
class Labels:
    """The labels of the drawing of a trace.

    Args:
        trace: the trace.
        axis_names: names of the axes of shapes, for instance {(8, 1024, 768): "b s d"}.
        max_sized_axes: show sizes next to axis names only for shapes with at most this many axes.
    """

    trace: ModelTrace
    axis_names: Mapping[Shape, str]
    max_sized_axes: int = 99

    def shape(self, shape: Shape) -> str:
        """Return the label of a shape on an arrow, with axis names if known."""
        sizes = "×".join(map(str, shape)) or "scalar"
        if shape not in self.axis_names:
            return sizes
        return f"{self.axis_names[shape]} {sizes}" if len(shape) <= self.max_sized_axes else self.axis_names[shape]

    def box(self, node: GraphNode) -> tuple[str, ...]:
        """Return the lines in a box: name, class or function, number of parameters, attention."""
        if node.operation == "input":
            return (node.text,)
        call = self.trace.calls[node.call]
        if not node.is_module:
            name = function_label(node, [name.removeprefix(call.path).lstrip(".") for name in sorted(node.parameters)])
            return tuple(filter(None, (name, node.attention)))
        is_tied = node.parameters and not any(name.startswith(f"{call.path}.") for name in node.parameters)
        size = sum(self.trace.parameter_sizes[name] for name in node.parameters)
        weights = f"tied to {min(node.parameters)}" if is_tied else format_compact(size) if size else ""
        description = " · ".join(filter(None, (class_label(call), weights)))
        lines = (description,) if len(description) <= MAX_LABEL_WIDTH else (class_label(call), weights)
        return tuple(filter(None, (module_label(call), *lines, node.attention)))

    def reference(self, node: GraphNode) -> str:
        """Return the name of a box that is drawn elsewhere."""
        path = self.trace.calls[node.call].path
        return path if node.is_module else f"{path}: {self.box(node)[0]}".removeprefix(": ")

    def frame(self, call: ModuleCall, times: int, parameters: int, is_part: bool) -> str:
        """Return the title of a frame."""
        name, size = module_label(call), format_compact(parameters) if parameters else "no parameters"
        if times == 1:
            return f"{name} · {size}" if is_part else f"{name} · {call.class_name} · {size}"
        first = name.removesuffix(f".{call.name}") if call.name.isdecimal() else name
        return f"× {times}  {first} · {call.class_name} · {size} each"


def class_label(call: ModuleCall) -> str:
    """Return the class of a module; for a `normscope.Norm`, the kind of norm and its scope."""
    scope = re.match(r"'([^']*\[[^']*)'", call.extra_repr)
    if scope is None:
        return call.class_name
    kind = "rms" if "statistic='rms'" in call.extra_repr else _NORMS.get(scope[1], call.class_name)
    return f"{kind if call.class_name == 'Norm' else call.class_name} {scope[1]}"


def module_label(call: ModuleCall) -> str:
    """Return the name of a module. An item of a list is preceded by the name of the list."""
    parts = call.path.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdecimal() else parts[-1]


def function_label(node: GraphNode, parameters: list[str]) -> str:
    """Return the label of a function."""
    if node.text:
        return node.text
    if node.operation in _ATTENTION:
        return "attention"
    if len(parameters) > 1:  # "in_proj" for in_proj_weight and in_proj_bias
        parameters = list(dict.fromkeys(re.sub(r"[._](weight|bias)$", "", name) for name in parameters))
    operands = ", ".join(parameters)
    sign = {"add": "+", "mul": "×", "sub": "-", "div": "/"}.get(node.operation)
    if operands:
        return f"{sign} {operands}" if sign else f"{_KNOWN.get(node.operation, node.operation)} by {operands}"
    constant = next((number for number in node.scalar_args if number is not None), None)
    if sign and len(node.inputs) == 1:
        return formula(node.operation, "x", node.scalar_args) if constant is not None else f"{sign} a constant"
    return sign or _KNOWN.get(node.operation, node.operation.replace("_", " "))
