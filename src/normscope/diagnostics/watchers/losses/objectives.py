"""The scalars that backward passes start from, over the steps of an x-ray."""

import math
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.stats.losses import ObjectiveStats, ObjectiveTerm
from normscope.diagnostics.watchers.losses.objective_terms import Terms

MAX_VALUES = 1000
"""Values of an objective that are kept. The first non-finite one after them is kept too."""

_MAX_OBJECTIVES = 64
"""Objectives that are told apart."""

_ADAPTIVE = ("Adam", "Adagrad", "RMSprop", "Adadelta", "Rprop", "Lion", "Muon", "Adafactor", "LAMB")
"""Parts of the names of optimizers whose steps hardly depend on the scale of the loss."""


class Objectives:
    """The scalars that backward starts from, told apart by line and by the losses in them."""

    def __init__(self) -> None:
        self._objectives: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._since_step: list[dict[str, Any]] = []
        self.is_clipped = False
        """Whether gradients were clipped since the last step."""

    def start_backward(self, root: Tensor, terms: Terms | None, empty_mask: str | None) -> None:
        """A backward pass starts. `empty_mask` is the line of a mask that left nothing of a loss, if any."""
        line, known = source_line(), self._objectives
        key = (line, tuple(sorted({part.loss for part in terms.parts})) if terms else (), root.requires_grad)
        if key not in known:
            if len(known) >= _MAX_OBJECTIVES:
                return
            known[key] = {
                "line": line,
                "values": [],
                "terms": {},
                "backward_passes": 0,
            }
        self._take(known[key], float(root.detach()), terms, empty_mask)

    def _take(self, objective: dict[str, Any], value: float, terms: Terms | None, empty_mask: str | None) -> None:
        objective["backward_passes"] += 1
        values = objective["values"]
        unscaled = value / (1.0 if terms is None else terms.loss_scale)
        is_first_non_finite = bool(values) and math.isfinite(values[-1]) and not math.isfinite(unscaled)
        if len(values) < MAX_VALUES or is_first_non_finite:
            values.append(unscaled)
        if terms is not None:
            for part in terms.parts:
                objective["terms"].setdefault(part.loss, part)
            objective["is_complete"] = terms.is_complete and objective.get("is_complete", True)
            objective["batch"] = max(terms.batch, objective.get("batch", 0))
        if empty_mask is not None and (value == 0 or math.isnan(value)):
            objective["empty_masks"] = objective.get("empty_masks", 0) + 1
            objective["mask_line"] = empty_mask
        self._since_step.append(objective)

    def reset_gradients(self) -> None:
        """Gradients are reset: those of earlier backward passes no longer count."""
        self._since_step.clear()

    def step(self, optimizer: Optimizer) -> None:
        """An optimizer of the model is about to step."""
        groups = optimizer.param_groups
        for objective in {id(found): found for found in self._since_step}.values():
            objective["steps"] = objective.get("steps", 0) + 1
            objective["optimizer"] = type(optimizer).__name__
            objective["lr"] = max(float(group.get("lr", 0.0)) for group in groups)
            objective["momentum"] = float(groups[0].get("momentum", 0.0) or 0.0)
            objective["maximizes"] = bool(groups[0].get("maximize", False))
            objective["adapts"] = any(part in type(optimizer).__name__ for part in _ADAPTIVE)
            objective["clips"] = self.is_clipped
        self._since_step.clear()
        self.is_clipped = False

    def finish(self) -> tuple[ObjectiveStats, ...]:
        self._since_step.clear()
        return tuple(map(_finished, self._objectives.values()))


def _finished(objective: dict[str, Any]) -> ObjectiveStats:
    terms: dict[int, ObjectiveTerm] = objective["terms"]
    return ObjectiveStats(**{**objective, "values": tuple(objective["values"]), "terms": tuple(terms.values())})
