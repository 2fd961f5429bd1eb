"""Build an ONNX graph by computing with symbolic values: `x @ w + b` adds nodes to the graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import ConfigError

OPSET = 17
"""Operators of 2022, which every runtime has: norms and activations are written out in them."""
IR_VERSION = 8
MAX_BYTES = 2**31 - 2**20
"""A protobuf file is limited to 2 GB: larger weights go into a file beside it."""

Array = NDArray[Any]
Operand = "Value | float | int | Array | Sequence[int]"


def import_onnx() -> Any:
    try:
        import onnx
    except ImportError:
        raise ConfigError("ONNX files need the package onnx\nfix: pip install 'normscope[export]'") from None
    return onnx


class Graph:
    """An ONNX graph under construction."""

    def __init__(self) -> None:
        self.onnx = import_onnx()
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.size = 0
        self._constants: dict[tuple[str, bytes], Value] = {}

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> "Value":
        self.inputs.append(self._description(name, dtype, shape))
        return Value(self, name)

    def output(self, value: "Value", name: str, shape: Sequence[int | str], dtype: str = "FLOAT") -> None:
        self.nodes.append(self.onnx.helper.make_node("Identity", [value.name], [name]))
        self.outputs.append(self._description(name, dtype, shape))

    def weight(self, name: str, array: Array) -> "Value":
        """Add a named constant."""
        tensor = self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        self.initializers.append(tensor)
        self.size += array.nbytes
        return Value(self, name)

    def constant(self, value: Any) -> "Value":
        """Add a small constant, or return the one that is there. Floats are float32, integers int64."""
        if isinstance(value, Value):
            return value
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float32)
        key = (f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.weight(f"constant_{len(self._constants)}", array)
        return self._constants[key]

    def node(self, operator: str, *inputs: Any, **attributes: Any) -> "Value":
        """Add a node and return its first output."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        names = [self.constant(one).name for one in inputs]
        self.nodes.append(self.onnx.helper.make_node(operator, names, [name], **attributes))
        return Value(self, name)

    def model(self, name: str) -> Any:
        """Return the ModelProto."""
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.initializers)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="normscope")

    def _description(self, name: str, dtype: str, shape: Sequence[int | str]) -> Any:
        return self.onnx.helper.make_tensor_value_info(name, getattr(self.onnx.TensorProto, dtype), list(shape))


class Value:
    """The result of a node."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def __add__(self, other: Any) -> "Value":
        return self.graph.node("Add", self, other)

    def __sub__(self, other: Any) -> "Value":
        return self.graph.node("Sub", self, other)

    def __mul__(self, other: Any) -> "Value":
        return self.graph.node("Mul", self, other)

    def __truediv__(self, other: Any) -> "Value":
        return self.graph.node("Div", self, other)

    def __matmul__(self, other: Any) -> "Value":
        return self.graph.node("MatMul", self, other)

    def mean(self) -> "Value":
        """The mean along the last axis, which stays with size 1."""
        return self.graph.node("ReduceMean", self, axes=[-1], keepdims=1)

    def reshape(self, *shape: Any) -> "Value":
        """Reshape; a size is a number (0: the same as before, -1: the rest) or a value of shape (1,)."""
        if all(isinstance(size, int) for size in shape):
            return self.graph.node("Reshape", self, list(shape))
        sizes = [size if isinstance(size, Value) else [size] for size in shape]
        return self.graph.node("Reshape", self, self.graph.node("Concat", *sizes, axis=0))

    def transpose(self, *order: int) -> "Value":
        return self.graph.node("Transpose", self, perm=list(order))

    def slice(self, start: int, stop: int, axis: int) -> "Value":
        return self.graph.node("Slice", self, [start], [stop], [axis])

    def gather(self, index: Any, axis: int = 0) -> "Value":
        return self.graph.node("Gather", self, index, axis=axis)

    def size(self, axis: int) -> "Value":
        """The size along an axis, of shape (1,)."""
        return self.graph.node("Shape", self).gather([axis])

    def apply(self, operator: str, **attributes: Any) -> "Value":
        return self.graph.node(operator, self, **attributes)
