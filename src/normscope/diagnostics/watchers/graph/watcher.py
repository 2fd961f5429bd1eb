"""Follow the values of parameters to the losses, also where autograd loses them: what got no gradient, and why."""

import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.collect.tensors import copy_elements, is_measurable
from normscope.diagnostics.module_names import is_inside, outer_names, outermost_outside, parent_name
from normscope.diagnostics.stats.graph import GraphCut, GraphStats
from normscope.diagnostics.watchers.graph.cuts import ZERO_SLOPE, Cuts
from normscope.diagnostics.watchers.graph.flow import NOTHING, Flow
from normscope.diagnostics.watchers.graph.numbers import NumbersOutsideTorch
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.function_kinds import SHAPE_ONLY
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_TO_PYTHON = frozenset({"item", "float", "tolist"})
_TO_NUMPY = frozenset({"numpy", "array"})
_TO_DECISION = frozenset({"int", "bool", "index"})
"""Functions that return no tensors. What Python code does with their results is unknown, except that a new tensor with
the same values was made from them."""

_UNFOLLOWED = SHAPE_ONLY | {
    *("backward", "grad", "grad_fn", "is_leaf", "requires_grad", "layout", "is_sparse", "is_nested", "is_complex"),
    *("is_floating_point", "size", "dim", "ndim", "numel", "device", "dtype", "shape", "len", "is_contiguous"),
}

_PROPERTIES = frozenset({"stride", "is_cuda", "element_size", "nelement", "storage_offset", "get_device", "type"})

_SAMPLE = 16
"""Elements of a parameter that are compared with those at the end."""

_REQUIRES_GRAD: Any = torch._C.TensorBase.requires_grad

_MAX_NODES = 4096
"""Nodes of a graph that are visited, to see whether it contains parameters."""


class GraphWatcher(Watcher):
    """Compare the flow of values with the graph."""

    functions = None

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._flows = TensorTable[Flow]()
        self._by_storage: dict[int, tuple[StorageWeakRef, Flow]] = {}
        self._max_storages = _MAX_NODES
        self._numbers = NumbersOutsideTorch()
        self._bits: dict[int, int] = {}
        self._names: list[str] = []
        self._first: list[tuple[nn.Parameter, Tensor]] = []
        self._cuts = Cuts()
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
                self._first.append((parameter, copy_elements(parameter, _SAMPLE)))

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
            if type(argument) is float:
                flow = self._numbers.of_number(argument)
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
            own = live if output.requires_grad and name not in ZERO_SLOPE else 0
            lost = live & ~own
            self._put(output, Flow(values, own, cuts | self._lose(call, output, lost), output.requires_grad))
            if output._is_view() and call.function.__name__.endswith(("_", "__")) and output._base is not None:
                base = self._flow_of(output._base)
                own |= base.live
                self._put(output._base, Flow(values | base.values, own, cuts | base.cuts, output._base.requires_grad))

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        """Remember which module reads samples."""
        for tensor in tensors_in((args, kwargs), 2) if self._samples and torch.is_grad_enabled() else ():
            found = self._flow_of(tensor).cuts & self._samples
            if found:
                self._readers.setdefault(found, frame.accumulator.name)

    def _compare(self, cuts: int, live: int, result: Any) -> None:
        """Samples are compared with their distribution, as log_prob() does: their gradient comes from there."""
        for cut in self._cuts:
            if cuts & self._samples & cut.bit and cut.lost & live and isinstance(result, Tensor) and result.dim():
                self._compared |= cut.bit

    def _freeze(self, call: FunctionCall) -> None:
        """Inside the forward of a module, a parameter is frozen or unfrozen."""
        switches = call.name == "requires_grad" or getattr(call.function, "__self__", None) is _REQUIRES_GRAD
        bit = self._bits.get(id(call.args[0]), 0) if call.args else 0
        if bit and switches and not call.args[0].requires_grad and not self._frozen & bit:
            self._frozen |= bit
            self._root_cuts |= self._cuts.add("frozen", "requires_grad_", bit, call)

    def _flow_of(self, tensor: Tensor) -> Flow:
        bit = self._bits.get(id(tensor))
        if bit is not None:
            return Flow(bit, bit if tensor.requires_grad else 0, 0, tensor.requires_grad)
        flow = self._flows.get(tensor)
        if flow is None:
            return self._put(tensor, self._origin_of(tensor))
        if flow.values and tensor.requires_grad and not flow.has_grad:
            # The output of an autograd function has got its node; or requires_grad_() made a new leaf.
            flow = Flow(flow.values, 0 if tensor.is_leaf else flow.values, flow.cuts, True)
            self._flows.put(tensor, flow)
        return flow

    def _origin_of(self, tensor: Tensor) -> Flow:
        """The flow of a tensor that no function returned: a part of the graph, shared memory, or equal numbers."""
        if not is_measurable(tensor) or (tensor.grad_fn is None and not self._by_storage):
            return NOTHING
        found = self._parameters_behind(tensor) if tensor.grad_fn is not None else 0
        if found:
            return Flow(found, found, 0, True)
        memory = self._by_storage.get(tensor.untyped_storage()._cdata) if tensor.numel() else None
        flow = memory[1] if memory is not None and not memory[0].expired() else self._numbers.of(tensor)
        if not flow.values:
            return NOTHING
        lost = self._cuts.add("copy", type(tensor).__name__, flow.live) if flow.live else 0
        return Flow(flow.values, 0, flow.cuts | lost, tensor.requires_grad)

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

    def _put(self, tensor: Tensor, flow: Flow) -> Flow:
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
        lost = live | self._cuts.detached_here(cuts)
        flow = Flow(values, 0, cuts | self._cuts.add(reason, call.name, lost, call), False)
        if isinstance(result, np.ndarray) and result.ndim > 1:
            guess = self._cuts.add("numpy?", call.name, lost, call)
            self._numbers.put_shape(result.shape, Flow(values, 0, guess, False))
        self._numbers.put(result, flow)

    def _lose(self, call: FunctionCall, output: Tensor, lost: int) -> int:
        cut = self._cuts.add_call(call, output, lost)
        self._samples |= cut if call.name == "normal" else 0
        return cut

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
        self._numbers.clear()

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
            GraphCut(cut.reason, cut.function, cut.module, cut.line, tuple(self._names_of(cut.lost & dead)))
            for cut in self._cuts
            if self._root_cuts & cut.bit and cut.lost & dead
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
        for cut in self._cuts:
            is_used = self._samples & ~self._compared & self._root_cuts & cut.bit
            reader = next((name for cuts, name in self._readers.items() if cuts & cut.bit), None)
            if not is_used or reader is None or not any(is_inside(name, reader) for name in names):
                continue
            lost = self._names_of(cut.lost & with_gradient)
            if lost and not any(is_inside(parent_name(name), reader) for name in lost):
                found.append(GraphCut("sample", cut.function, reader, cut.line, tuple(lost)))
        return found

    def _names_of(self, parameters: int) -> list[str]:
        return [name for number, name in enumerate(self._names) if parameters >> number & 1]

    def _set_by_hand(self) -> tuple[str, ...]:
        changed, tracked = 0, self.watched.parameters.tracked
        for number, (parameter, first) in enumerate(self._first):
            if not tracked[id(parameter)].gradients:
                now = copy_elements(parameter, _SAMPLE)
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
