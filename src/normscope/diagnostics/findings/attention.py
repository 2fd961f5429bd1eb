"""Attention that puts all weight on one token, or the same weight on every token."""

import math

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView, has_nonzero_gradient, is_inside, module_ref
from normscope.diagnostics.record import AttentionStats, ModuleRecord
from normscope.render.formatting import format_percent, format_short

MIN_KEYS = 4
"""With two or three keys, one of them often gets nearly all the weight."""

COLLAPSED = 0.9
"""Fraction of queries, in every head, that put more than 99% of their weight on one key. (Equal tokens share a
weight.)"""

COLLAPSED_SCORE_STD = 24 * math.log(2)
"""Standard deviation of the scores beyond which collapse is permanent: keys that score lower by 24 ln 2 get weights
below float32's rounding of 1, and no gradient. Attention that has learned to select one key has a standard deviation of
about ln(99 * keys), 5 to 11; random scores collapse this far only at 100 or more."""

UNIFORM = 1e-13
"""How close to 1 all entropies are. Scores with standard deviation s have an entropy of 1 - s^2 / (2 ln keys), so they
differ by less than a millionth, a few float32 ulp. Small initializations are not affected: a post-norm model whose
first attention reads embeddings of std 0.02 with weights of std 0.02 has s = 1e-5, and trains."""


def check_attention(view: RecordView) -> list[Finding]:
    found = []
    for module in view.ran:
        attention = module.attention
        if attention is None or attention.keys < MIN_KEYS or not attention.entropy or not attention.peaked:
            continue
        if min(attention.peaked) >= COLLAPSED and (attention.score_std or 0.0) >= COLLAPSED_SCORE_STD:
            found.append(_collapsed(view, module, attention))
        elif min(attention.entropy) >= 1 - UNIFORM:
            found.append(_uniform(view, module, attention))
    return found


def _collapsed(view: RecordView, module: ModuleRecord, attention: AttentionStats) -> Finding:
    std = attention.score_std or 0.0
    return Finding(
        "attention-collapsed",
        "warning",
        module.name,
        f"attention has collapsed in all {attention.heads} heads of {module_ref(module.name)}: "
        f"{format_percent(min(attention.peaked))} of queries attend to a single key",
        {"least peaked head": min(attention.peaked), "score std": std, "keys": attention.keys},
        f"The scores before softmax have a standard deviation of {format_short(std)}. All other keys get weights that "
        f"round to zero and receive no gradient, so attention cannot learn to look elsewhere.",
        view.initialization_advice(
            "divide the scores by sqrt(head_dim) if that is missing, use a smaller initialization for the query and "
            "key weights, or normalize queries and keys (QK-norm)"
        ),
    )


def _uniform(view: RecordView, module: ModuleRecord, attention: AttentionStats) -> Finding:
    can_learn = _has_learning_zero_weight(view, module)
    return Finding(
        "attention-uniform",
        "note" if can_learn else "warning",
        module.name,
        f"all {attention.heads} heads of {module_ref(module.name)} attend to every key equally",
        {
            "1 - entropy": 1 - min(attention.entropy),
            "score std": attention.score_std or 0.0,
            "keys": attention.keys,
        },
        "The attention weights are equal to within rounding, so the output is the mean over all keys and does not "
        "depend on the tokens."
        + (
            " A zero-initialized weight gets a gradient here, so this ends with the first step."
            if can_learn
            else " No weight gets a useful gradient."
        ),
        "check the query and key weights (if both are zero, neither gets a gradient; zero-initialize at most one), the "
        "scale of the scores, and whether the input tokens differ at all",
    )


def _has_learning_zero_weight(view: RecordView, module: ModuleRecord) -> bool:
    """Whether a zero weight inside has a gradient, as when only queries start at zero (Yang et al. 2022, muP)."""
    inside = [p for m, p in view.matrices if is_inside(m.name, module.name)]
    return any(parameter.values.rms == 0 and has_nonzero_gradient(parameter) for parameter in inside)
