"""Weights that are copies of each other: layers that start, and may stay, identical."""

import math
import textwrap
from collections import defaultdict
from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import (
    common_parent,
    follows_by_name,
    join_names,
    module_ref,
    name_pattern,
    parent_name,
)
from normscope.diagnostics.record import ModuleRecord, ParameterRecord

DUPLICATE_WEIGHTS = FindingKind("""
duplicate-weights: {module}{more} {verb} the same initial weights as {first}
why: The weights are not tied but hold the same values, so the layers start out computing the same function.
copy.deepcopy of a layer causes this, and so does nn.TransformerEncoder.
fix: reinitialize {module}{more} after building the model:{code}
""")

UNTIED_WEIGHTS = FindingKind("""
untied-weights: `{head}` and `{embedding}` started with the same values, but are not tied
why: They are two parameters: a copy was made, or tying was undone by loading or replacing a parameter. Each gets its
own gradient, so they come apart (now {difference}), and the model has {elements} parameters more than meant.
fix: tie them after all weights are loaded and before the optimizer is made: {code}; or initialize them separately
""")

MIN_ELEMENTS = 16
"""Smaller matrices may be equal by design."""

MAX_UNIFORM = 2.2
"""Kurtosis of weights that are drawn uniformly, as torch does by default: 1.8. Trained weights have 3 and more."""

MAX_ZEROS = 0.5
"""A matrix with more zeros than this, such as an identity, was set explicitly and not drawn at random."""


@check("structural")
def check_duplicate_weights(view: RecordView) -> Iterator[Finding]:
    """Find weights of linear layers and convolutions with the same bytes in different storage.

    A frozen copy is a teacher, and a copy without a gradient whose original has one is a target network: both are
    intended. Other matrices, such as the decays of a state space model, are equal in every block by design.
    """
    same: dict[str, list[tuple[str, ParameterRecord]]] = defaultdict(list)
    for module, parameter in view.matrices:
        if _is_randomly_initialized(module, parameter):
            same[parameter.initial_hash or parameter.content_hash or ""].append(
                (join_names(module.name, parameter.name), parameter)
            )
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    apart: set[str] = set()
    for (original, first), *others in same.values():
        for name, parameter in others:
            if (first.gradient is None) == (parameter.gradient is None) and not follows_by_name(name, original):
                if _came_apart(first, parameter) and _may_come_apart(original, name, parameter):
                    apart.add(name)
                pairs[_diverging_modules(original, name)].append((original, name))
    copies: dict[str, dict[str, int]] = defaultdict(dict)
    meant: dict[str, bool] = {}
    for found in pairs.values():
        originals, duplicates = zip(*found, strict=True)
        copies[_module_of(originals)][_module_of(duplicates)] = len(found)
        meant[_module_of(originals)] = meant.get(_module_of(originals), True) and apart.issuperset(duplicates)
    for original, counts in copies.items():
        yield DUPLICATE_WEIGHTS.found_in(
            next(iter(counts)),
            {"copies": len(counts), "identical matrices": sum(counts.values()), "original": original},
            "note" if meant[original] else "warning",
            first=module_ref(original),
            more=f" and {len(counts) - 1} more" if len(counts) > 1 else "",
            verb="have" if len(counts) > 1 else "has",
            code=f"\n{_reinitialize_code(list(counts))}",
        )


def _came_apart(first: ParameterRecord, copy: ParameterRecord) -> bool:
    return first.initial_hash is not None and first.content_hash != copy.content_hash


def _may_come_apart(original: str, name: str, copy: ParameterRecord) -> bool:
    """Whether copies that training has made different may be meant.

    Layers of one stack, such as those of nn.TransformerEncoder, read different inputs; pretrained weights may start two
    towers.
    """
    is_stack = name_pattern(original) == name_pattern(name) != name
    return is_stack or copy.initial is None or copy.initial.kurtosis > MAX_UNIFORM


@check("structural")
def check_untied_weights(view: RecordView) -> Iterator[Finding]:
    """Find embeddings and output layers that began with the same values but are trained separately."""
    linear = {p.initial_hash: (m, p) for m, p in view.matrices if p is m.linear_weight and p.initial_hash is not None}
    for module, table in view.matrices:
        if table.initial_hash not in linear or "embed" not in module.kind.lower():
            continue
        head, weight = linear[table.initial_hash]
        if table.has_nonzero_gradient and weight.has_nonzero_gradient and math.prod(table.shape) >= MIN_ELEMENTS:
            names = join_names(head.name, weight.name), join_names(module.name, table.name)
            is_equal = weight.content_hash == table.content_hash
            yield UNTIED_WEIGHTS.found_in(
                head,
                {"elements": math.prod(weight.shape), "embedding": module.name},
                head=names[0],
                embedding=names[1],
                difference="still equal" if is_equal else "different",
                code=f"model.{names[0]} = model.{names[1]}",
            )


def _is_randomly_initialized(module: ModuleRecord, parameter: ParameterRecord) -> bool:
    """Whether it is the trainable weight of a linear layer, with values that no two layers share by design."""
    large = math.prod(parameter.shape) >= MIN_ELEMENTS and parameter.values.zeros < MAX_ZEROS
    return (
        bool(parameter.initial_hash or parameter.content_hash)
        and parameter.requires_grad
        and large
        and parameter is module.linear_weight
    )


def _module_of(weights: tuple[str, ...]) -> str:
    return common_parent([parent_name(name) for name in weights])


def _diverging_modules(original: str, copy: str) -> tuple[str, str]:
    """The outermost modules that contain exactly one of two weights.

    >>> _diverging_modules("layers.0.attn.q.weight", "layers.3.attn.q.weight")
    ('layers.0', 'layers.3')
    """
    ours, theirs = original.split("."), copy.split(".")
    shared = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
    most = max(1, min(len(ours), len(theirs)) - 1)  # the last part is the parameter's name
    end = min(shared + 1, most)
    return ".".join(ours[:end]), ".".join(theirs[:end])


def _reinitialize_code(names: list[str]) -> str:
    """Code that reinitializes the weights of these modules.

    >>> print(_reinitialize_code(["layers.1"]))
    for p in model.get_submodule("layers.1").parameters():
        if p.dim() > 1: nn.init.xavier_uniform_(p)
    """
    loop = "for p in model.get_submodule({}).parameters():\n    if p.dim() > 1: nn.init.xavier_uniform_(p)"
    if len(names) == 1:
        return loop.format(f'"{names[0]}"')
    listed = ", ".join(f'"{name}"' for name in names)
    return f"for name in [{listed}]:\n{textwrap.indent(loop.format('name'), '    ')}"
