"""Build an ONNX graph by computing with symbolic values: `x @ w + b` adds nodes to the graph."""

from collections.abc import Sequence
from contextlib import nullcontext
from io import BufferedWriter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normscope.errors import ConfigError

OPSET = 17
"""Operators of 2022, which every runtime has: norms and activations are written out in them."""
IR_VERSION = 8
MAX_BYTES = 2**31 - 2**24
"""A protobuf file is limited to 2 GB, nodes and names included: larger weights go into a file beside it."""
DATA_SUFFIX = ".data"
_INLINE_BYTES = 1024
"""Smaller tensors stay in the graph: runtimes need shapes and axes to check it."""
_ALIGNMENT = 4096
"""Tensors in the file beside it start at a page, so that it can be mapped."""

Array = NDArray[Any]


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
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._weights: dict[str, Tensor | Array] = {}
        self._constants: dict[tuple[str, bytes], Value] = {}

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> "Value":
        self.inputs.append(self._description(name, dtype, shape))
        return Value(self, name)

    def output(self, value: "Value", name: str, shape: Sequence[int | str], dtype: str = "FLOAT") -> None:
        self.nodes.append(self.onnx.helper.make_node("Identity", [value.name], [name]))
        self.outputs.append(self._description(name, dtype, shape))

    def weight(self, name: str, tensor: Tensor | Array) -> "Value":
        """Add a named constant; a torch tensor is stored in float32, and converted only when the graph is written."""
        assert name not in self._weights, name
        self._weights[name] = tensor
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

    def range(self, start: Any, stop: Any) -> "Value":
        """The integers from start to stop; either is a number or a value of shape (1,)."""
        ends = [self.node("Squeeze", one, [0]) if isinstance(one, Value) else one for one in (start, stop)]
        return self.node("Range", *ends, 1)

    def concat(self, *values: Any, axis: int) -> "Value":
        return self.node("Concat", *values, axis=axis)

    def write(self, path: Path, name: str, facts: dict[str, str], max_bytes: int = MAX_BYTES) -> None:
        """Write the model; its weights into a file beside it if they take more than `max_bytes`."""
        helper = self.onnx.helper
        model = helper.make_model(
            helper.make_graph(self.nodes, name, self.inputs, self.outputs),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="normscope",
        )
        helper.set_model_props(model, facts)
        size = sum(4 * one.numel() if isinstance(one, Tensor) else one.nbytes for one in self._weights.values())
        data = path.with_name(path.name + DATA_SUFFIX)
        with nullcontext() if size <= max_bytes else data.open("wb") as file:
            for weight_name, weight in self._weights.items():  # one by one: make_graph would copy all of them
                self._add_weight(model, weight_name, _array(weight), file)
        path.write_bytes(model.SerializeToString())

    def _add_weight(self, model: Any, name: str, array: Array, file: BufferedWriter | None) -> None:
        """Add a weight to the model, or to a file beside it."""
        tensor = model.graph.initializer.add()
        tensor.name, tensor.data_type = name, self.onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor.dims.extend(array.shape)
        data = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if file is None or array.nbytes < _INLINE_BYTES:
            tensor.raw_data = data.tobytes()
            return
        file.write(bytes(-file.tell() % _ALIGNMENT))
        tensor.data_location = self.onnx.TensorProto.EXTERNAL
        place = {"location": Path(file.name).name, "offset": file.tell(), "length": array.nbytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        file.write(data.data)

    def _description(self, name: str, dtype: str, shape: Sequence[int | str]) -> Any:
        return self.onnx.helper.make_tensor_value_info(name, getattr(self.onnx.TensorProto, dtype), list(shape))


def _array(weight: Tensor | Array) -> Array:
    """A weight as it is written, contiguous."""
    return np.asarray(weight.detach().float().cpu().numpy() if isinstance(weight, Tensor) else weight, order="C")


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

    def mean(self, axes: Sequence[int]) -> "Value":
        """The mean along these axes, which stay with size 1."""
        return self.graph.node("ReduceMean", self, axes=list(axes), keepdims=1)

    def reshape(self, *shape: Any) -> "Value":
        """Reshape; a size is a number (0: the same as before, -1: the rest) or a value of shape (1,)."""
        if all(isinstance(size, int) for size in shape):
            return self.graph.node("Reshape", self, list(shape))
        sizes = [size if isinstance(size, Value) else [size] for size in shape]
        return self.graph.node("Reshape", self, self.graph.concat(*sizes, axis=0))

    def transpose(self, *order: int) -> "Value":
        return self.graph.node("Transpose", self, perm=list(order))

    def slice(self, start: Any, stop: Any, axis: int) -> "Value":
        """A part along an axis; its ends are numbers or values of shape (1,)."""
        ends = [one if isinstance(one, Value) else [one] for one in (start, stop)]
        return self.graph.node("Slice", self, *ends, [axis])

    def gather(self, index: Any, axis: int = 0) -> "Value":
        return self.graph.node("Gather", self, index, axis=axis)

    def size(self, axis: int) -> "Value":
        """The size along an axis, of shape (1,)."""
        return self.graph.node("Shape", self).gather([axis])

    def apply(self, operator: str, **attributes: Any) -> "Value":
        return self.graph.node(operator, self, **attributes)
