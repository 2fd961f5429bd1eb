"""Attention that puts all weight on one token, or the same weight on every token."""

import math
from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import is_inside
from normscope.render.formatting import all_of

COLLAPSED_ATTENTION = FindingKind("""
attention-collapsed: attention has collapsed in {heads} of {module}: {least peaked head:%} of queries attend to a
single key
why: The scores before softmax have a standard deviation of {score std}. All other keys get weights that round to zero
and receive no gradient, so attention cannot learn to look elsewhere.
fix: {after_training}divide the scores by sqrt(head_dim) if that is missing, use a smaller initialization for the query
and key weights, or normalize queries and keys (QK-norm)
""")

UNIFORM_ATTENTION = FindingKind("""
attention-uniform: in {heads} of {module} every query attends to all keys equally
why: The attention weights are equal to within rounding, so the output is the mean over all keys and does not depend on
the tokens. {outlook}
fix: check the query and key weights (if both are zero, neither gets a gradient; zero-initialize at most one), the scale
of the scores, and whether the input tokens differ at all
""")

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


@check("numeric")
def check_attention(view: RecordView) -> Iterator[Finding]:
    for module, attention in view.attentions:
        if attention.keys < MIN_KEYS or not attention.entropy or not attention.peaked:
            continue
        heads = all_of(attention.heads, "head")
        peaked, flat, std = min(attention.peaked), min(attention.entropy), attention.score_std or 0.0
        scores: dict[str, float | str] = {"score std": std, "keys": attention.keys}
        if peaked >= COLLAPSED and std >= COLLAPSED_SCORE_STD:
            evidence, advice = {"least peaked head": peaked, **scores}, view.after_training_advice
            yield COLLAPSED_ATTENTION.found_in(module, evidence, heads=heads, after_training=advice)
        elif flat >= 1 - UNIFORM:
            severity, outlook = "warning", "No weight gets a useful gradient."
            inside = [p for m, p in view.matrices if is_inside(m.name, module.name)]
            # Only one zero weight, such as that of the queries, has a gradient (Yang et al. 2022, muP).
            if any(parameter.values.rms == 0 and parameter.has_nonzero_gradient for parameter in inside):
                severity = "note"
                outlook = "A zero-initialized weight gets a gradient here, so this ends with the first step."
            evidence = {"1 - entropy": 1 - flat, **scores}
            yield UNIFORM_ATTENTION.found_in(module, evidence, severity, heads=heads, outlook=outlook)
