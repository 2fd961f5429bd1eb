"""Attention that looks at one token only, or at all of them alike."""

import math

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, called, is_inside, is_moved, percent, short
from normscope.diagnostics.record import AttentionStats, ModuleRecord

LEAST_KEYS = 4
"""With two or three keys one of them often gets nearly all."""

COLLAPSED = 0.9
"""The share of queries, in every head, that give more than 99% to one key. (Tokens that are alike share a weight.)"""

LOST_SPREAD = 24 * math.log(2)
"""The spread of the scores from which the choice is out of reach of learning: keys that score lower by 24 ln 2 have
weights under float32's rounding of 1, and so no gradient. Attention that has learnt to choose one key does so with a
spread of about ln(99 * keys), 5 to 11; random scores collapse so far only at a spread of a hundred and more."""

UNIFORM = 1e-13
"""How close to 1 all entropies are. Scores of spread s have an entropy of 1 - s^2 / (2 ln keys), so they differ by less
than a millionth, a few roundings of float32. Small starts are not there: a post-norm model whose first attention reads
embeddings of 0.02 with weights of 0.02 has a spread of 1e-5, and learns."""


def attention_shape(view: View) -> list[Finding]:
    found = []
    for module in view.ran:
        attention = module.attention
        if attention is None or attention.keys < LEAST_KEYS or not attention.entropy or not attention.peaked:
            continue
        if min(attention.peaked) >= COLLAPSED and (attention.score_std or 0.0) >= LOST_SPREAD:
            found.append(_collapsed(view, module, attention))
        elif min(attention.entropy) >= 1 - UNIFORM:
            found.append(_uniform(view, module, attention))
    return found


def _collapsed(view: View, module: ModuleRecord, attention: AttentionStats) -> Finding:
    spread = attention.score_std or 0.0
    return Finding(
        "attention-collapsed",
        "warning",
        module.name,
        f"in all {attention.heads} heads of {called(module.name)} {percent(min(attention.peaked))} of the queries "
        f"give all to one key",
        {"least sharp head": min(attention.peaked), "spread of scores": spread, "keys": attention.keys},
        f"The scores before softmax have a spread of {short(spread)}. The keys that lose get weights that round to "
        f"zero, and no gradient, so attention cannot learn to look elsewhere.",
        view.of_the_start(
            "divide the scores by sqrt(head width) if that is missing, start the query and key weights smaller, or "
            "normalise queries and keys before the product (QK-norm)"
        ),
    )


def _uniform(view: View, module: ModuleRecord, attention: AttentionStats) -> Finding:
    waking = _is_waking(view, module)
    return Finding(
        "attention-uniform",
        "note" if waking else "warning",
        module.name,
        f"all {attention.heads} heads of {called(module.name)} look at all keys alike: they see a mean, not tokens",
        {
            "entropy below 1 by": 1 - min(attention.entropy),
            "spread of scores": attention.score_std or 0.0,
            "keys": attention.keys,
        },
        "The weights are the same for every key to within rounding, so the scores do not depend on the tokens."
        + (
            " A weight of zero gets a gradient there, so this is a start."
            if waking
            else " There is nothing to learn from."
        ),
        "look at the query and key weights (if both start at zero neither gets a gradient; one may), at the scale of "
        "the scores, and at whether the tokens that come in differ at all",
    )


def _is_waking(view: View, module: ModuleRecord) -> bool:
    """Whether a weight of zero in it has a gradient, as when queries alone start at zero (Yang et al. 2022, muP)."""
    inside = [p for m, p in view.matrices if is_inside(m.name, module.name)]
    return any(parameter.values.rms == 0 and is_moved(parameter) for parameter in inside)
