"""Scores of attention that are masked, normalized or scaled wrongly, and views that mix up axes."""

import math
from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.stats.attention_use import AttentionUse

MASK = FindingKind("""
attention-mask: {problem} in {module}
why: {why}
fix: {fix}
""")
SOFTMAX_AXIS = FindingKind("""
attention-softmax-axis: {module} takes the softmax over axis {softmax axis}, but sums over axis {summed axis}
why: The weights of a query do not sum to one: those of a key over the queries do, so queries compete for keys, and
each depends on the others.
fix: take the softmax over the keys, the axis that the product with the values sums over: dim={summed axis}
""")
SOFTMAX_OF_ONE = FindingKind("""
attention-softmax-axis: {module} takes the softmax over axis {softmax axis}, which has one element
why: The softmax of one number is always 1, so what made the scores has no effect and gets no gradient.
fix: take the softmax over the axis of what the weights choose from, such as the tokens: dim=1 for (batch, tokens, 1)
""")
UNSCALED = FindingKind("""
attention-unscaled: the scores of {module} are not divided by sqrt({head dim}): their standard deviation is {score std}
why: Products of {head dim} features grow like sqrt({head dim}) = {root}. Softmax then puts nearly all weight on
one key, and passes little gradient to the queries and keys.
fix: divide the scores by sqrt(head_dim): q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
""")
MIXED_AXES = FindingKind("""
mixes-axes: {module} turns ({before}) into ({after}) by {function}, which mixes up the axes
why: view and reshape keep the order of the elements in memory, so what was one token, channel or sample becomes parts
of several. Only transpose and permute exchange axes.
fix: {fix}
""")

MAX_MASKED_WEIGHT = 1e-3
"""Weight on all masked keys of a query. A mask of -30, weak but usable, leaves at most keys * e^-30."""

MIN_KEYS = 4

UNSCALED_FACTOR = 2.0
"""The scores are at least twice as large as with 1 / sqrt(head_dim). Without any scale, this needs 4 features."""

MIN_HEAD_DIM = 8

LARGE_SCORES = 4.0
"""Standard deviation of the scores. Of 16 normal scores with it, the largest is 7 above the mean and takes nearly all
the weight. Models that have no scale on purpose, such as T5, start with small weights, and scores around 1."""


@check("structural")
def check_masks(view: RecordView) -> Iterator[Finding]:
    for use in view.record.attention_use:
        problem = _mask_problem(use)
        if problem is not None:
            what, why, fix = problem
            evidence = {
                "weight of masked keys": use.masked_weight,
                "visible keys": use.visible_keys,
                "keys": use.keys,
                "line": use.source or None,
            }
            yield MASK.found_in(use.module, evidence, "error", problem=what, why=why, fix=fix)


def _mask_problem(use: AttentionUse) -> tuple[str, str, str] | None:
    weight = use.masked_weight
    if weight is not None and weight > MAX_MASKED_WEIGHT:
        how = {
            "fill": f"masked scores are set to {use.fill:.3g}",
            "added": f"the mask adds {use.fill:.3g} to masked scores",
            "multiplied": "masked scores are multiplied by 0, which is a score like others",
        }[use.mask]
        return (
            f"masked keys get {weight:.2%} of the weight",
            f"Before the softmax {how}, so the keys stay visible: only minus infinity gives a weight of zero.",
            "use scores.masked_fill(mask, float('-inf')), or a boolean mask in scaled_dot_product_attention",
        )
    if use.is_reversed:
        return (
            "the causal mask is reversed: queries see all later keys, and no earlier ones",
            "The mask hides what it should show, so the model reads its answers from the future.",
            "invert the mask: nn.MultiheadAttention hides where a boolean attn_mask is True, "
            "scaled_dot_product_attention shows where it is True",
        )
    if use.sees_padding_only:
        return (
            "the mask hides the tokens and shows the padding",
            "Each query sees only the padding at the end of its sequence.",
            "invert the mask: key_padding_mask is True where keys are hidden (ids == pad), attn_mask of "
            "scaled_dot_product_attention where they are visible",
        )
    if use.visible_keys == 1 and use.keys >= MIN_KEYS:
        return (
            f"every query sees only one of {use.keys} keys",
            "With one visible key its weight is always 1, so attention cannot move anything between tokens.",
            "check the shape of the mask, and what True means in it",
        )
    return None


@check("structural")
def check_softmax_axes(view: RecordView) -> Iterator[Finding]:
    for use in view.record.attention_use:
        if use.softmax_axis is not None and use.keys == 1 and not use.head_dim:
            yield SOFTMAX_OF_ONE.found_in(use.module, {"softmax axis": use.softmax_axis, "line": use.source or None})
        if use.softmax_axis is not None and use.contracted_axis not in (None, use.softmax_axis):
            evidence = {
                "softmax axis": use.softmax_axis,
                "summed axis": use.contracted_axis,
                "line": use.source or None,
            }
            yield SOFTMAX_AXIS.found_in(use.module, evidence)


@check("numeric")
def check_scales(view: RecordView) -> Iterator[Finding]:
    for use in view.record.attention_use:
        if use.scale is None or use.head_dim < MIN_HEAD_DIM or use.keys < MIN_KEYS:
            continue
        if use.scale * math.sqrt(use.head_dim) >= UNSCALED_FACTOR and use.score_std >= LARGE_SCORES:
            figures = {
                "head dim": use.head_dim,
                "score std": use.score_std,
                "scale": use.scale,
                "line": use.source or None,
            }
            yield UNSCALED.found_in(use.module, figures, root=f"{math.sqrt(use.head_dim):.3g}")


@check("structural")
def check_axes(view: RecordView) -> Iterator[Finding]:
    for mixed in view.record.mixed_axes:
        before, after = (", ".join(map(str, shape)) for shape in (mixed.before, mixed.after))
        yield MIXED_AXES.found_in(
            mixed.module,
            {"before": before, "after": after, "line": mixed.source or None},
            function=mixed.function,
            fix=_fix_axes(mixed.before, mixed.after),
        )


def _fix_axes(before: tuple[int, ...], after: tuple[int, ...]) -> str:
    if sorted(before) == sorted(after) and len(set(before)) == len(before):
        return f"use permute({', '.join(str(before.index(size)) for size in after)}) instead"
    if len(before) == 3 and len(after) == 4:
        return "split the features first, then transpose: x.view(b, t, heads, d).transpose(1, 2)"
    if len(before) == 4 and len(after) == 3:
        return "transpose first, then merge the last two axes: x.transpose(1, 2).reshape(b, t, heads * d)"
    return "permute the axes into the order of the result first, then reshape"
