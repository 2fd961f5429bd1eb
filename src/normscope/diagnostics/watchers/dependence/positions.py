"""Find positions that do nothing, or are counted along the batch."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnostics.module_names import join_names
from normscope.diagnostics.watchers.dependence.changes import are_equal, difference, has_time_first, tolerance_of
from normscope.diagnostics.watchers.dependence.kept_call import KeptCall, only_input
from normscope.tracing.experiments import Experiment

_POSITIONS = re.compile(r"(^|[._])(w?pe|pos|positions?|pos(ition)?(al)?_?(emb|enc)\w*)($|[._])", re.IGNORECASE)

_CLASS_OF_POSITIONS = re.compile(r"posi?tion", re.IGNORECASE)

_MIN_POSITIONS = 1e-3
"""Position embeddings below this are still close to a zero initialization."""


def find_unused_positions(
    name: str, called: KeptCall, experiment: Experiment, base: list[Tensor], is_time_first: bool | None
) -> str | None:
    """Whether positions do nothing: other ones give the same outputs, or all tokens have the same one.

    Otherwise exchange tokens: if only their outputs are exchanged, positions are not used.
    """
    x, holder = only_input(called), _module_of_positions(called.module)
    if holder is not None and (
        are_equal(base, experiment.run(edit=lambda model: _reverse_tables(model.get_submodule(holder)))[: len(base)])
        or _has_one_position(experiment, holder)
    ):
        return join_names(name, holder)
    if x is None or holder is None or x.dim() > 3 or x.shape[1] < 4 or (x.dim() == 2 and x.is_floating_point()):
        return None
    if has_time_first(x, experiment, base) if is_time_first is None else is_time_first:
        return None
    last = x.shape[1] - 1
    for first, second in ((1, last), (1, last // 2), (last // 2, last)):
        order = torch.arange(x.shape[1], device=x.device)
        order[first], order[second] = second, first
        if first == second or torch.equal(x[:, first], x[:, second]):
            return None

        def exchange(given: Tensor, order: Tensor = order) -> Tensor:
            return given[:, order] if given.shape[:2] == x.shape[:2] else given

        after = experiment.run(exchange)
        for a, b in zip(base, after, strict=True):
            has_time = a.dim() >= 2 and a.shape[1] == x.shape[1] and a.shape[0] == x.shape[0]
            if a.shape != b.shape or difference(a[:, order] if has_time else a, b) > tolerance_of(a) / 10:
                return None
    return join_names(name, holder)


def _reverse_tables(holder: nn.Module) -> None:
    """Reverse the order of the positions of a copied module."""
    holders: list[dict[str, Any]] = [holder._parameters, holder._buffers]
    for tensors in holders:
        for own, tensor in list(tensors.items()):
            is_table = isinstance(tensor, Tensor) and tensor.dim() >= 2 and tensor.is_floating_point()
            if is_table and (_POSITIONS.search(own) or isinstance(holder, nn.Embedding)):
                changed = tensor.detach().flip(tuple(range(tensor.dim())))
                tensors[own] = nn.Parameter(changed) if isinstance(tensor, nn.Parameter) else changed


def _has_one_position(experiment: Experiment, holder: str) -> bool:
    """Whether an embedding of positions gets one index for all tokens, in each call."""
    found: list[bool] = []

    def visit(name: str, module: nn.Module, inputs: list[Tensor], _: list[Tensor]) -> None:
        if name == holder and type(module) is nn.Embedding and inputs and inputs[0].numel() >= 4:
            found.append(bool((inputs[0] == inputs[0].flatten()[0]).all()))

    experiment.run(visit=visit)
    return bool(found) and all(found)


def _module_of_positions(model: nn.Module) -> str | None:
    """The module that holds positions: an embedding, a parameter or a table of sines, that is not zero."""
    name: str
    for name, module in model.named_modules():
        tensors: dict[str, Tensor | None] = {**module._parameters, **module._buffers}
        for own, tensor in tensors.items():
            full = join_names(name, own)
            is_named = _POSITIONS.search(full) or _CLASS_OF_POSITIONS.search(type(module).__name__)
            if tensor is None or tensor.dim() < 2 or not tensor.is_floating_point() or not is_named:
                continue
            if float(tensor.detach().abs().amax()) >= _MIN_POSITIONS and "relative" not in full:
                return name
    return None


def find_positions_along_batch(name: str, called: KeptCall, experiment: Experiment, base: list[Tensor]) -> str | None:
    """Move all samples by one: if their outputs do not only move, something is added by the index of the sample."""
    x, holder = only_input(called), _module_of_positions(called.module)
    if x is None or holder is None or len(x) < 2:
        return None
    count = len(x)

    def roll(given: Tensor) -> Tensor:
        return given.roll(1, 0) if given.dim() and len(given) == count else given

    after = experiment.run(roll)
    for a, b in zip(base, after, strict=True):
        if a.dim() and len(a) == count and a.shape == b.shape and difference(a.roll(1, 0), b) > tolerance_of(a):
            return None if has_time_first(x, experiment, base) else join_names(name, holder)
    return None
