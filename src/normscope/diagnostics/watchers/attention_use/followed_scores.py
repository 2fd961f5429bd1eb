"""Follow queries, keys, scores and weights through products, factors, masks and transpositions."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normscope.diagnostics.watchers.attention_use.scores import (
    Scores,
    factor_of,
    filled,
    is_binary,
    with_addend,
)
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall


@dataclass
class Weights:
    """The output of a softmax over scores: its axis, from the end."""

    module: str
    axis: int


class FollowedScores:
    """What is known of tensors between queries and keys, and the product of weights and values."""

    def __init__(self) -> None:
        self.scores = TensorTable[Scores]()
        self.weights = TensorTable[Weights]()

    def clear(self) -> None:
        self.scores.clear()
        self.weights.clear()

    def scale_of(self, a: Tensor, b: Tensor) -> float | None:
        """The factors in a product of two tensors; None if one is unknown."""
        first, second = ((self.scores.get(x) or Scores()).scale for x in (a, b))
        return None if first is None or second is None else first * second

    def product(self, call: FunctionCall, result: Tensor) -> tuple[Weights, int] | None:
        """Follow a product of two tensors. If one holds weights, return them, and the axis that is summed."""
        start = 1 if call.name == "baddbmm" else 0
        tensors = [x for x in (*call.args, *call.kwargs.values()) if isinstance(x, Tensor)][start : start + 2]
        if len(tensors) < 2 or result.dim() < 3 or min(x.dim() for x in tensors) < 2:
            return None
        a, b = tensors
        for operand, contracted in ((a, -1), (b, -2)):
            weights = self.weights.get(operand)
            if weights is not None:
                return weights, contracted
        if a.dim() == b.dim() and not isinstance(b, torch.nn.Parameter):
            found = Scores(self.scale_of(a, b), a.shape[-1])
            if call.name == "baddbmm":  # nn.MultiheadAttention adds its mask here
                found = with_addend(found, call.args[0])
                alpha = call.kwargs.get("alpha", 1)
                found = replace(found, scale=None if found.scale is None else found.scale * float(alpha))
            self.scores.put(result, found)
        return None

    def einsum(self, call: FunctionCall, result: Tensor) -> tuple[Weights, int] | None:
        """The same of a product by letters, such as bhqd,bhkd->bhqk."""
        equation, *operands = call.args
        operands = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
        if not isinstance(equation, str) or len(operands) != 2 or "->" not in equation or "." in equation:
            return None
        left, right = equation.replace(" ", "").split("->")
        letters = left.split(",")
        if len(letters) != 2 or not all(
            isinstance(x, Tensor) and x.dim() == len(own) for x, own in zip(operands, letters, strict=True)
        ):
            return None
        for x, own in zip(operands, letters, strict=True):
            weights = self.weights.get(x)
            if weights is not None:
                summed = [i - len(own) for i, letter in enumerate(own) if letter not in right]
                return (weights, weights.axis if weights.axis in summed else summed[0]) if summed else None
        summed_letters = [letter for letter in letters[0] if letter in letters[1] and letter not in right]
        if len(summed_letters) == 1 and result.dim() >= 3 and not isinstance(operands[1], torch.nn.Parameter):
            scale = self.scale_of(*operands)
            self.scores.put(result, Scores(scale, operands[0].shape[letters[0].index(summed_letters[0])]))
        return None

    def follow(self, call: FunctionCall, result: Tensor) -> None:
        """Scale, mask, or transpose queries, keys, scores and weights."""
        tensors = [x for x in (*call.args[:3], *call.kwargs.values()) if isinstance(x, Tensor)]
        name = call.name
        if name in ("transpose", "permute", "mT", "dropout"):
            self._pass_on(call, result)
            return
        main = next((x for x in tensors if self.scores.get(x) is not None), None)
        known = None if main is None else self.scores.get(main)
        if name in ("mul", "div"):
            factor = factor_of(call, main)
            if known is None:
                if isinstance(factor, float) and factor and tensors:
                    self.scores.put(result, Scores(scale=1 / factor if name == "div" else factor))
                return
            if isinstance(factor, Tensor):
                is_mask = name == "mul" and known.head_dim and is_binary(factor, result)
                found = replace(known, scale=None)
                if is_mask:
                    found = replace(known, mask="multiplied", fill=0.0, masked=factor == 0)
                self.scores.put(result, found)
            elif factor is not None and known.scale is not None and factor:
                self.scores.put(
                    result, replace(known, scale=known.scale / factor if name == "div" else known.scale * factor)
                )
        elif known is None or not known.head_dim:
            return
        elif name == "add":
            others = [x for x in tensors if x is not main]
            self.scores.put(result, with_addend(known, others[0]) if others else known)
        elif name == "sub":
            self.scores.put(result, known)
        elif name == "masked_fill" and len(call.args) + len(call.kwargs) >= 3:
            mask = call.args[1] if len(call.args) > 1 else call.kwargs.get("mask")
            value = call.args[2] if len(call.args) > 2 else call.kwargs.get("value")
            if main is call.args[0]:
                self.scores.put(result, filled(known, mask, value))
        elif name == "where" and len(call.args) == 3:
            condition, a, b = call.args
            if main is a:
                self.scores.put(result, filled(known, ~condition if condition.dtype == torch.bool else None, b))
            elif main is b:
                self.scores.put(result, filled(known, condition, a))

    def _pass_on(self, call: FunctionCall, result: Tensor) -> None:
        given = call.args[0] if call.args else None
        if not isinstance(given, Tensor):
            return
        known = self.scores.get(given)
        if known is not None and (not known.head_dim or call.name == "dropout"):
            self.scores.put(result, known)
        weights = self.weights.get(given)
        if weights is None:
            return
        order = list(range(given.dim()))
        if call.name == "transpose":
            i, j = (int(x) for x in (call.args[1:3] if len(call.args) > 2 else call.kwargs.values()))
            order[i], order[j] = order[j], order[i]
        elif call.name == "mT":
            order[-1], order[-2] = order[-2], order[-1]
        elif call.name == "permute":
            dims = call.args[1:] if len(call.args) > 2 else call.args[1] if len(call.args) > 1 else call.kwargs["dims"]
            order = [int(x) % given.dim() for x in dims]
        axis = order.index(weights.axis % given.dim()) - given.dim()
        self.weights.put(result, Weights(weights.module, axis))
