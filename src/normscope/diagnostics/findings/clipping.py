"""Gradient clipping that is always in effect."""

import math
from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check

CLIPPED = FindingKind("""
clipping-always: gradients are clipped to {limit}, but their norm was at least {smallest norm} in all {calls} calls
why: Each gradient is divided by {divisor} or more. {effect}
fix: set max_norm to about the usual norm of the gradients, often 1.0; {scaler}if the gradients are too large, look for
a summed loss
""")

CLIPPED_VALUES = FindingKind("""
clipping-always: nearly all gradients have a size of exactly {limit}: they are clipped by value
why: Only their signs are left, and the steps are far smaller than the learning rate suggests.
fix: raise clip_value of clip_grad_value_, or clip the norm instead: clip_grad_norm_(parameters, 1.0)
""")

MIN_CLIPPED, MIN_EXCESS, SMALL_LIMIT = 5, 100.0, 0.05
"""Calls; the norm over the limit in all of them; and the limit below which nobody clips: 0.1 to 10 are in use. With a
usual limit, a summed loss is clipped as much, and adaptive optimizers do not care."""

UNSCALED_EXCESS = 1000.0
"""With a GradScaler, of a usual limit: gradients that are still scaled are 2**10 to 2**16 times too large."""


@check("structural")
def check_clipping(view: RecordView) -> Iterator[Finding]:
    loop = view.record.loop
    for clipping in loop.clipping:
        if clipping.calls < MIN_CLIPPED or not clipping.smallest >= MIN_EXCESS * clipping.limit:
            continue
        is_scaled = loop.scaler_updates > 0 and clipping.smallest >= UNSCALED_EXCESS * clipping.limit
        is_strange = clipping.limit < SMALL_LIMIT
        effect, scaler = "The steps are far smaller than the learning rate suggests.", ""
        if is_scaled:
            effect, scaler = "The gradients are still multiplied by the loss scale.", "call scaler.unscale_ before; "
        evidence = {
            "limit": clipping.limit,
            "smallest norm": clipping.smallest,
            "calls": clipping.calls,
            "called at": clipping.source,
        }
        yield CLIPPED.found_in(
            "",
            evidence,
            "warning" if is_scaled or is_strange else "note",
            divisor=clipping.smallest / clipping.limit if clipping.limit else math.inf,
            effect=effect,
            scaler=scaler,
        )


@check("structural")
def check_clipped_values(view: RecordView) -> Iterator[Finding]:
    for optimizer in view.record.loop.optimizers:
        if optimizer.clipped is not None and optimizer.steps >= MIN_CLIPPED and optimizer.clipped < SMALL_LIMIT:
            yield CLIPPED_VALUES.found_in(optimizer.module, {"limit": optimizer.clipped, "steps": optimizer.steps})
