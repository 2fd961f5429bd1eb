"""Weights that are copies of each other: layers that start, and may stay, the same."""

import math
from collections import defaultdict

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, called, holder, linear_weight, parent
from normscope.diagnostics.record import ModuleRecord, ParameterRecord

LEAST_NUMBERS = 16
"""A matrix of fewer numbers may be alike by design."""

WRITTEN = 0.5
"""A matrix with so large a share of zeros, such as an identity, was written down and not drawn: others may be alike."""


def copied_weights(view: View) -> list[Finding]:
    """Weights of linear layers and convolutions with the same bytes in different memory.

    A copy that is frozen is a teacher, and one that gets no gradient where its original does is a target: both are
    meant. Other matrices, such as the decays of a state space, start at the same numbers in every block by design.
    """
    same: dict[str, list[tuple[str, ParameterRecord]]] = defaultdict(list)
    for module, parameter in view.matrices:
        if _is_drawn(module, parameter):
            name = f"{module.name}.{parameter.name}" if module.name else parameter.name
            same[parameter.content_hash or ""].append((name, parameter))
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for (original, first), *others in same.values():
        for name, parameter in others:
            if (first.gradient is None) == (parameter.gradient is None):
                pairs[_where_they_part(original, name)].append((original, name))
    copies: dict[str, dict[str, int]] = defaultdict(dict)
    for found in pairs.values():
        originals, theirs = zip(*found, strict=True)
        copies[_holder_of(originals)][_holder_of(theirs)] = len(found)
    return [_finding(original, found) for original, found in copies.items()]


def _is_drawn(module: ModuleRecord, parameter: ParameterRecord) -> bool:
    """Whether it is the trained weight of a linear layer, with numbers that no two layers have by design."""
    large = math.prod(parameter.shape) >= LEAST_NUMBERS and parameter.values.zeros < WRITTEN
    return bool(parameter.content_hash) and parameter.requires_grad and large and parameter is linear_weight(module)


def _holder_of(weights: tuple[str, ...]) -> str:
    return holder([parent(name) for name in weights])


def _where_they_part(original: str, copy: str) -> tuple[str, str]:
    """The outermost modules that hold one of two weights each, and not both.

    >>> _where_they_part("layers.0.attn.q.weight", "layers.3.attn.q.weight")
    ('layers.0', 'layers.3')
    """
    ours, theirs = original.split("."), copy.split(".")
    shared = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
    most = max(1, min(len(ours), len(theirs)) - 1)  # the last part is the parameter's
    end = min(shared + 1, most)
    return ".".join(ours[:end]), ".".join(theirs[:end])


def _finding(original: str, copies: dict[str, int]) -> Finding:
    first = next(iter(copies))
    more = f" and {len(copies) - 1} more" if len(copies) > 1 else ""
    return Finding(
        "copied-weights",
        "warning",
        first,
        f"the weights of {called(first)}{more} are copies of those of {called(original)}",
        {"copies": len(copies), "matrices alike": sum(copies.values()), "original": original},
        "They are not tied, so they were meant to differ, but they start with the same numbers: layers that do the "
        "same thing twice. copy.deepcopy of a layer does this, and so does nn.TransformerEncoder.",
        f"draw the weights of {called(first)}{more} anew after the model is made:\n{_drawing(list(copies))}",
    )


def _drawing(names: list[str]) -> str:
    """Code that draws the weights of these modules anew.

    >>> print(_drawing(["layers.1"]))
    for p in model.get_submodule("layers.1").parameters():
        if p.dim() > 1: nn.init.xavier_uniform_(p)
    """
    if len(names) == 1:
        return (
            f'for p in model.get_submodule("{names[0]}").parameters():\n    if p.dim() > 1: nn.init.xavier_uniform_(p)'
        )
    listed = ", ".join(f'"{name}"' for name in names)
    return (
        f"for name in [{listed}]:\n"
        f"    for p in model.get_submodule(name).parameters():\n"
        f"        if p.dim() > 1: nn.init.xavier_uniform_(p)"
    )
