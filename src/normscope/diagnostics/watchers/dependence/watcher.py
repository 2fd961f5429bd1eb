"""Keep one call of each model, and experiment with a copy of the model after the block.

The arguments of the first call with gradients are kept. A copy of the model runs on changed versions of them, in eval
mode.
"""

import time
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnostics.collect.collectives import has_other_ranks
from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.tensors import is_readable
from normscope.diagnostics.stats.dependence import DependenceRecord, LeakRecord
from normscope.diagnostics.watchers.dependence.changes import are_equal
from normscope.diagnostics.watchers.dependence.kept_call import MAX_ELEMENTS, KeptCall, copy_call, with_few_samples
from normscope.diagnostics.watchers.dependence.later_tokens import find_leak, find_sequences, over_time
from normscope.diagnostics.watchers.dependence.other_samples import find_mixing
from normscope.diagnostics.watchers.dependence.positions import find_positions_along_batch, find_unused_positions
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.experiments import Experiment
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_MAX_BUFFER_BYTES = 1 << 28

_MAX_SECONDS = 3.0
"""If one forward pass takes longer, there are no experiments: there would be about ten more."""

_MAX_TARGETS = 4

_MAX_CALLED = 3
"""Models that are called from outside, such as the two of a GAN, of which a call is kept."""

_TARGET_ARGUMENT = {"gather": (2, "index")}

_LOSSES = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "gather"),
)

_REDUCING = (
    "softmax",
    "normalize",
    "log_softmax",
    "var",
    "std",
    "norm",
    "var_mean",
    "std_mean",
    "linalg_vector_norm",
    "logsumexp",
)


class DependenceWatcher(Watcher):
    """Keeps one call of each model that is called from outside, and experiments with it after the block."""

    functions = (*_LOSSES, *_REDUCING, "mean", "sub", "div")

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._calls: dict[str, KeptCall | None] = {}
        self._last: weakref.ref[KeptCall] | None = None
        self._batch_reductions: dict[str, str] = {}
        self._means = TensorTable[str]()

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        if outer or not torch.is_grad_enabled():
            return
        name = frame.accumulator.name
        previous = self._last() if self._last is not None else None
        if previous is not None and previous.targets:
            previous.is_open = False
        known = self._calls.get(name)
        if name not in self._calls and len(self._calls) < _MAX_CALLED and _is_safe(self.watched, frame.module):
            self._calls[name] = known = copy_call(frame.module, args, kwargs)
            self._last = None if known is None else weakref.ref(known)
        if known is not None and len(known.batches) < 3:
            first = next(tensors_in((args, kwargs)), None)
            known.batches.add(float(first.detach().double().sum()) if first is not None and is_readable(first) else 0.0)

    def call_function(self, call: FunctionCall, result: Any) -> None:
        if call.name not in _LOSSES:
            if call.frames:
                self._see_reduction(call, result)
            return
        known = self._last() if self._last is not None else None
        if known is None or not known.is_open or len(known.targets) >= _MAX_TARGETS:
            return
        place, name = _TARGET_ARGUMENT.get(call.name, (1, "target"))
        target = call.args[place] if len(call.args) > place else call.kwargs.get(name)
        if isinstance(target, Tensor) and is_readable(target) and target.numel() <= MAX_ELEMENTS:
            ignored = call.kwargs.get("ignore_index", -100) if call.name in ("cross_entropy", "nll_loss") else None
            counts = call.name != "gather" and call.kwargs.get("reduction", "mean") != "none"
            known.targets.append((target.detach().clone(), ignored, counts))

    def _see_reduction(self, call: FunctionCall, result: Any) -> None:
        """A function that reduces the first axis, or subtracts, or divides by, a mean over it."""
        if call.name in ("sub", "div"):
            if len(self._means) and any(isinstance(x, Tensor) and self._means.get(x) for x in call.args[1:2]):
                self._batch_reductions.setdefault(call.frames[-1].accumulator.name, "mean")
            return
        x, dim = (
            call.args[0] if call.args else None,
            call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None),
        )
        if call.name in ("norm", "linalg_vector_norm", "normalize"):
            dim = call.kwargs.get("dim", call.args[2] if len(call.args) > 2 else None)
        dims = dim if isinstance(dim, list | tuple) else [dim]
        if isinstance(x, Tensor) and x.dim() >= 2 and (0 in dims or -x.dim() in dims):
            if call.name != "mean":
                self._batch_reductions.setdefault(call.frames[-1].accumulator.name, call.name)
            elif isinstance(result, Tensor):
                self._means.put(result, "mean")

    def finish(self) -> dict[str, Any]:
        found = []
        for name, called in self._calls.items():
            if called is not None:
                try:
                    found.append(_examine(name, called, self._batch_reductions))
                except Exception:  # the model cannot run on changed inputs, or not twice
                    continue
        self._calls.clear()
        self._means.clear()
        return {"dependence": tuple(record for record in found if record is not None)}


def _is_safe(watched: Watched, module: nn.Module) -> bool:
    """Whether a copy may run, without the other ranks, and is not too large."""
    if watched.session.has_dtensors or has_other_ranks() or isinstance(module, torch.jit.ScriptModule):
        return False
    return sum(buffer.nbytes for buffer in module.buffers()) <= _MAX_BUFFER_BYTES


def _examine(name: str, called: KeptCall, reductions: dict[str, str]) -> DependenceRecord | None:
    few = with_few_samples(called)
    try:
        experiment = Experiment(few.module, few.args, few.kwargs)
        start = time.perf_counter()
        base = experiment.run()
    except Exception:  # another argument, such as a mask or a state, has the size of the whole batch
        few, experiment = called, Experiment(called.module, called.args, called.kwargs)
        start = time.perf_counter()
        base = experiment.run()
    called = few
    if not base or not all(bool(tensor.isfinite().all()) for tensor in base):
        return None
    if time.perf_counter() - start > _MAX_SECONDS:
        return None
    sequences = list(find_sequences(called))
    if sequences and not any(True for x in base for _ in over_time(x, sequences[0].tensor, sequences[0].axis)):
        # In eval mode, the model returns the last token only, or something else.
        experiment = Experiment(called.module, called.args, called.kwargs, training=True)
        base = experiment.run()
    is_random = not are_equal(base, experiment.run(seed=1))
    # A decoder that repeats what an encoder has read has two tensors with the next tokens, and may look ahead in one.
    leaks = [find_leak(name, experiment, base, sequence) for sequence in sequences]
    found = [leak for leak in leaks if leak is not None]
    leak = next((leak for leak in found if isinstance(leak, LeakRecord)), None) if all(found) else None
    is_time_first = sequences[0].axis == 0 if sequences else None
    mixing = find_mixing(name, called, experiment, base, reductions, is_time_first)
    unused, along_batch = None, None
    if not is_random:
        unused = find_unused_positions(name, called, experiment, base, is_time_first)
        along_batch = find_positions_along_batch(name, called, experiment, base) if mixing is None else None
    return DependenceRecord(name, bool(sequences), leak, mixing, unused, along_batch)
