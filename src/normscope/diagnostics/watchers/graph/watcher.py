"""Follow the values of parameters to the losses, also where autograd loses them: what got no gradient, and why."""

import math
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.collect.tensors import is_measurable, sample_elements
from normscope.diagnostics.module_names import is_inside, outer_names, outermost_outside, parent_name
from normscope.diagnostics.stats.graph import GraphCut, GraphStats
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.function_kinds import SHAPE_ONLY
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.sharded import local_part
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_ZERO_SLOPE = frozenset({"round", "floor", "ceil", "trunc", "fix", "sign", "sgn", "heaviside", "floor_divide"})
_ZERO_SLOPE |= {"normal", "bernoulli", "poisson"}
"""Functions of floating-point numbers whose gradient is zero everywhere, also those that draw samples."""

_TO_PYTHON = frozenset({"item", "float", "tolist"})
_TO_NUMPY = frozenset({"numpy", "array"})
_TO_DECISION = frozenset({"int", "bool", "index"})
"""Functions that return no tensors. What Python code does with their results is unknown, except that a new tensor with
the same values was made from them."""

_FROM_VALUES = frozenset({"tensor", "as_tensor", "asarray", "new_tensor", "from_numpy"})

_UNFOLLOWED = SHAPE_ONLY | {
    *("backward", "grad", "grad_fn", "is_leaf", "requires_grad", "layout", "is_sparse", "is_nested", "is_complex"),
    *("is_floating_point", "size", "dim", "ndim", "numel", "device", "dtype", "shape", "len", "is_contiguous"),
}

_PROPERTIES = frozenset({"stride", "is_cuda", "element_size", "nelement", "storage_offset", "get_device", "type"})

_MAX_CUTS = 256
"""Different cuts that are distinguished; most are harmless, such as metrics."""

_MAX_LINES = 512
"""Cuts whose line of code is looked up, which takes as long as a small function."""

_MAX_VALUES = 1 << 13
"""Numbers that went to Python or NumPy and are remembered."""

_MAX_NUMBERS = 1024
"""Numbers of one array or list that are remembered; of a larger one, a sample."""

_SAMPLE = 16
_SAME = 0.5
"""Of a tensor of unknown origin, this many numbers are looked up, and this part must be known: other numbers of a batch
of data may be equal to some by chance."""

_REQUIRES_GRAD: Any = torch._C.TensorBase.requires_grad

_MAX_NODES = 4096
"""Nodes of a graph that are visited, to see whether it contains parameters."""


@dataclass(slots=True)
class _Flow:
    """What a tensor was computed from, as sets of parameters and of cuts, each a number with one bit per element.

    Args:
        values: parameters whose values are in it.
        live: those of them that autograd can reach from it.
        cuts: places where others were lost.
        has_grad: whether it required a gradient then.
    """

    values: int
    live: int
    cuts: int
    has_grad: bool


_NOTHING = _Flow(0, 0, 0, False)


class GraphWatcher(Watcher):
    """Compare the flow of values with the graph."""

    functions = None

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._flows = TensorTable[_Flow]()
        self._by_storage: dict[int, tuple[StorageWeakRef, _Flow]] = {}
        self._max_storages = _MAX_NODES
        self._by_value: dict[float, _Flow] = {}
        self._by_shape: dict[tuple[int, ...], _Flow] = {}
        self._bits: dict[int, int] = {}
        self._names: list[str] = []
        self._first: list[tuple[nn.Parameter, Tensor]] = []
        self._cuts: dict[tuple[str, str, str, str | None], int] = {}
        self._lost: list[int] = []
        self._lines: dict[tuple[str, str], str | None] = {}
        self._looked_up = 0
        self._used = self._reached = self._live = self._left_torch = self._root_cuts = self._frozen = 0
        self._samples = self._compared = 0
        self._readers: dict[int, str] = {}
        self._calls = self._without_model = self._without_graph = 0
        self._line: str | None = None
        self._carries_values = False

    def start(self) -> None:
        for tracked in self.watched.parameters.tracked.values():
            parameter = tracked.parameter
            if parameter.requires_grad and parameter.is_leaf:
                self._bits[id(parameter)] = 1 << len(self._names)
                self._names.append(tracked.name)
                self._first.append((parameter, sample_elements(local_part(parameter), _SAMPLE).clone()))

    def call_function(self, call: FunctionCall, result: Any) -> None:
        name = call.name
        if name in ("requires_grad", "set") and call.frames:
            self._freeze(call)
        if name in _UNFOLLOWED:
            return
        values = live = cuts = 0
        for argument in (*call.args, *call.kwargs.values()) if call.kwargs else call.args:
            for tensor in (argument,) if isinstance(argument, Tensor) else tensors_in(argument, 2):
                flow = self._flow_of(tensor)
                values, live, cuts = values | flow.values, live | flow.live, cuts | flow.cuts
        if self._by_value:
            for number in call.args:
                if type(number) is float and (flow := self._by_value.get(number, _NOTHING)) is not _NOTHING:
                    values, cuts = values | flow.values, cuts | flow.cuts
        if not values:
            return
        self._used |= values if torch.is_grad_enabled() else 0
        if cuts & self._samples & ~self._compared:
            self._compare(cuts, live, result)
        if isinstance(result, Tensor):
            outputs: Iterable[Tensor] = (result,)
        elif name == "setitem":
            outputs = tensors_in(call.args[0])
        elif name in _TO_PYTHON or name in _TO_NUMPY or name in _TO_DECISION:
            self._leave(call, result, values, live, cuts)
            return
        else:
            outputs = list(tensors_in(result, 2))
            self._left_torch |= 0 if outputs or name in _PROPERTIES else values
        for output in outputs:
            if id(output) in self._bits:  # set by hand, or by an average
                continue
            own = live if output.requires_grad and name not in _ZERO_SLOPE else 0
            lost = live & ~own
            self._put(output, _Flow(values, own, cuts | self._cut(call, output, lost), output.requires_grad))
            if output._is_view() and call.function.__name__.endswith(("_", "__")) and output._base is not None:
                base = self._flow_of(output._base)
                own |= base.live
                self._put(output._base, _Flow(values | base.values, own, cuts | base.cuts, output._base.requires_grad))

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        """Remember which module reads samples."""
        for tensor in tensors_in((args, kwargs), 2) if self._samples and torch.is_grad_enabled() else ():
            found = self._flow_of(tensor).cuts & self._samples
            if found:
                self._readers.setdefault(found, frame.accumulator.name)

    def _compare(self, cuts: int, live: int, result: Any) -> None:
        """Samples are compared with their distribution, as log_prob() does: their gradient comes from there."""
        for number, lost in enumerate(self._lost):
            if (cuts & self._samples) >> number & 1 and lost & live and isinstance(result, Tensor) and result.dim():
                self._compared |= 1 << number

    def _freeze(self, call: FunctionCall) -> None:
        """Inside the forward of a module, a parameter is frozen or unfrozen."""
        switches = call.name == "requires_grad" or getattr(call.function, "__self__", None) is _REQUIRES_GRAD
        bit = self._bits.get(id(call.args[0]), 0) if call.args else 0
        if bit and switches and not call.args[0].requires_grad and not self._frozen & bit:
            self._frozen |= bit
            self._root_cuts |= self._cut_at("frozen", "requires_grad_", bit, call)

    def _flow_of(self, tensor: Tensor) -> _Flow:
        bit = self._bits.get(id(tensor))
        if bit is not None:
            return _Flow(bit, bit if tensor.requires_grad else 0, 0, tensor.requires_grad)
        flow = self._flows.get(tensor)
        if flow is None:
            return self._put(tensor, self._origin_of(tensor))
        if flow.values and tensor.requires_grad and not flow.has_grad:
            # The output of an autograd function has got its node; or requires_grad_() made a new leaf.
            flow = _Flow(flow.values, 0 if tensor.is_leaf else flow.values, flow.cuts, True)
            self._flows.put(tensor, flow)
        return flow

    def _origin_of(self, tensor: Tensor) -> _Flow:
        """The flow of a tensor that no function returned: a part of the graph, shared memory, or equal numbers."""
        if not is_measurable(tensor) or (tensor.grad_fn is None and not self._by_storage):
            return _NOTHING
        found = self._parameters_behind(tensor) if tensor.grad_fn is not None else 0
        if found:
            return _Flow(found, found, 0, True)
        memory = self._by_storage.get(tensor.untyped_storage()._cdata) if tensor.numel() else None
        flow = memory[1] if memory is not None and not memory[0].expired() else self._flow_of_values(tensor)
        if not flow.values:
            return _NOTHING
        lost = self._cut_at("copy", type(tensor).__name__, flow.live) if flow.live else 0
        return _Flow(flow.values, 0, flow.cuts | lost, tensor.requires_grad)

    def _flow_of_values(self, tensor: Tensor) -> _Flow:
        """The flow of the numbers that went to Python and NumPy, if many of them are in this tensor."""
        if not self._by_value or not tensor.numel():
            return _NOTHING
        numbers = [x for x in sample_elements(tensor, _SAMPLE).tolist() if math.isfinite(x) and x != round(x, 2)]
        known = [flow for x in numbers if (flow := self._by_value.get(x)) is not None]
        if not known or len(known) < _SAME * len(numbers):
            return self._by_shape.get(tuple(tensor.shape), _NOTHING)
        values = cuts = 0
        for flow in known:
            values, cuts = values | flow.values, cuts | flow.cuts
        return _Flow(values, 0, cuts, False)

    def _parameters_behind(self, tensor: Tensor) -> int:
        """The parameters of the model that autograd reaches from a tensor."""
        found, waiting, known = 0, [tensor.grad_fn], set[Any]()
        while waiting and len(known) < _MAX_NODES:
            node = waiting.pop()
            if node is None or node in known:
                continue
            known.add(node)
            found |= self._bits.get(id(getattr(node, "variable", None)), 0)
            waiting += [following for following, _ in node.next_functions]
        return found

    def _put(self, tensor: Tensor, flow: _Flow) -> _Flow:
        self._flows.put(tensor, flow)
        if flow.values and is_measurable(tensor) and tensor.numel():
            memory = tensor.untyped_storage()
            self._by_storage[memory._cdata] = (StorageWeakRef(memory), flow)
            if len(self._by_storage) > self._max_storages:
                self._by_storage = {key: entry for key, entry in self._by_storage.items() if not entry[0].expired()}
                self._max_storages = max(_MAX_NODES, 2 * len(self._by_storage))
        return flow

    def _leave(self, call: FunctionCall, result: Any, values: int, live: int, cuts: int) -> None:
        """Values go to Python or NumPy."""
        self._left_torch |= values
        if call.name in _TO_DECISION:
            return
        reason = "numpy" if call.name in _TO_NUMPY else "python"
        lost = live | self._detached_here(cuts)
        flow = _Flow(values, 0, cuts | self._cut_at(reason, call.name, lost, call), False)
        if isinstance(result, np.ndarray) and result.ndim > 1:
            guess = self._cut_at("numpy?", call.name, lost, call)
            self._by_shape[result.shape] = _Flow(values, 0, guess, False)
        for number in _numbers_in(result):
            self._by_value.pop(number, None)
            self._by_value[number] = flow
        while len(self._by_value) > _MAX_VALUES:
            del self._by_value[next(iter(self._by_value))]

    def _detached_here(self, cuts: int) -> int:
        """What was detached in the same line, as in x.detach().numpy()."""
        line = source_line()
        places = ((number, reason, at) for (reason, _, _, at), number in self._cuts.items() if number < len(self._lost))
        found = 0
        for number, reason, at in places if cuts else ():
            if cuts >> number & 1 and at == line and reason in ("detach", "data"):
                found |= self._lost[number]
        return found

    def _cut(self, call: FunctionCall, output: Tensor, lost: int) -> int:
        """Register a cut if parameters were lost; return it as a set."""
        if not lost:
            return 0
        if call.name in ("detach", "data"):
            reason = call.name
        elif call.name in _ZERO_SLOPE:
            reason = "zero slope"
        elif call.name in _FROM_VALUES:
            reason = "copy"
        elif not output.is_floating_point() and not output.is_complex():
            reason = "integers"
        elif torch.is_grad_enabled():
            reason = "in place" if call.name == "setitem" or call.function.__name__.endswith("_") else "no gradient"
        else:
            reason = "no_grad"
        cut = self._cut_at(reason, call.name, lost, call)
        self._samples |= cut if call.name == "normal" else 0
        return cut

    def _cut_at(self, reason: str, function: str, lost: int, call: FunctionCall | None = None) -> int:
        module = call.frames[-1].accumulator.name if call is not None and call.frames else ""
        if self._looked_up < _MAX_LINES:
            self._looked_up += 1
            self._lines[function, module] = line = source_line()
        else:
            line = self._lines.get((function, module))
        number = self._cuts.setdefault((reason, function, module, line), len(self._cuts))
        if number >= _MAX_CUTS:
            return 0
        if number == len(self._lost):
            self._lost.append(0)
        self._lost[number] |= lost
        return 1 << number

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        values = live = cuts = 0
        for root in roots:
            flow = self._flow_of(root)
            behind = flow.live or self._parameters_behind(root)
            values, live, cuts = values | flow.values | behind, live | behind, cuts | flow.cuts
        self._calls += 1
        self._reached, self._live = self._reached | values, self._live | live
        self._root_cuts |= cuts
        if not live:
            self._without_model += 1
            self._without_graph += not any(root.requires_grad for root in roots)
            if self._line is None:
                self._line, self._carries_values = source_line(), bool(values)

    def stop(self) -> None:
        self._flows.clear()
        self._by_storage.clear()
        self._by_value.clear()
        self._by_shape.clear()

    def finish(self) -> dict[str, Any]:
        if not self._calls:
            return {"graph": GraphStats()}
        tracked = self.watched.parameters.tracked
        with_gradient = sum(
            bit
            for number, (parameter, _) in enumerate(self._first)
            if (moments := tracked[id(parameter)].gradient) is not None and moments.rms > 0 and (bit := 1 << number)
        )
        frozen = sum(1 << n for n, (parameter, _) in enumerate(self._first) if not parameter.requires_grad)
        dead = (self._reached | (self._frozen & frozen)) & ~self._live & ~with_gradient
        cuts = [
            GraphCut(reason, function, module, line, tuple(self._names_of(self._lost[number] & dead)))
            for (reason, function, module, line), number in self._cuts.items()
            if number < _MAX_CUTS and self._root_cuts >> number & 1 and self._lost[number] & dead
        ]
        cuts += self._sampled(with_gradient)
        return {
            "graph": GraphStats(
                self._calls, self._without_model, self._without_graph, self._line, self._carries_values, tuple(cuts),
                self._unused(with_gradient), self._set_by_hand(), self._copies(),
            )
        }  # fmt: skip

    def _sampled(self, with_gradient: int) -> list[GraphCut]:
        """Samples that another module reads, and whose distribution learns only from the rest of the loss."""
        names = {parent_name(name) for name in self._names_of(with_gradient)}
        found = []
        for (_, function, _, line), number in self._cuts.items():
            is_used = (self._samples & ~self._compared & self._root_cuts) >> number & 1
            reader = next((name for cuts, name in self._readers.items() if cuts >> number & 1), None)
            if not is_used or reader is None or not any(is_inside(name, reader) for name in names):
                continue
            lost = self._names_of(self._lost[number] & with_gradient)
            if lost and not any(is_inside(parent_name(name), reader) for name in lost):
                found.append(GraphCut("sample", function, reader, line, tuple(lost)))
        return found

    def _names_of(self, parameters: int) -> list[str]:
        return [name for number, name in enumerate(self._names) if parameters >> number & 1]

    def _set_by_hand(self) -> tuple[str, ...]:
        changed, tracked = 0, self.watched.parameters.tracked
        for number, (parameter, first) in enumerate(self._first):
            if not tracked[id(parameter)].gradients:
                now = sample_elements(local_part(parameter), _SAMPLE)
                changed |= (now.shape != first.shape or not torch.equal(now, first)) << number
        return tuple(self._names_of(changed))

    def _copies(self) -> tuple[str, ...]:
        tracked = self.watched.parameters.tracked.values()
        hashes = {t.name: t.initial.content_hash for t in tracked if t.initial is not None and t.parameter.dim() >= 2}
        count = Counter(found for found in hashes.values() if found is not None)
        return tuple(name for name, found in hashes.items() if found is not None and count[found] > 1)

    def _unused(self, with_gradient: int) -> tuple[str, ...]:
        """Modules in the user's code from which no value came to a loss, nor left torch."""
        unused = self._used & ~self._reached & ~self._left_torch & ~with_gradient
        modules = {name: module for module, name in self.watched.names.items()}
        useful = {parent_name(name) for name in self._names_of(with_gradient)}
        useful |= {outer for name in useful for outer in outer_names(name)}
        found = dict.fromkeys(outermost_outside(useful, parent_name(name)) for name in self._names_of(unused))
        return tuple(name for name in found if name and not _is_installed(modules.get(parent_name(name))))


_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))


def _is_installed(module: nn.Module | None) -> bool:
    """Whether the class of a module comes from an installed package other than torch."""
    package = "" if module is None else type(module).__module__
    path = getattr(sys.modules.get(package), "__file__", None) or ""
    return path.startswith(_INSTALLED) and package.partition(".")[0] != "torch"


def _numbers_in(value: Any) -> list[float]:
    """Numbers that identify a Python or NumPy value, without round ones, which other values have too."""
    if isinstance(value, np.ndarray):
        flat = value.reshape(-1)
        value = (flat if flat.size <= _MAX_NUMBERS else flat[:: -(-flat.size // _SAMPLE)]).tolist()
    found: list[float] = []
    waiting = [value]
    while waiting and len(found) < _MAX_NUMBERS:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item[:_MAX_NUMBERS]
        elif isinstance(item, float) and math.isfinite(item) and item != round(item, 2):
            found.append(item)
    return found
