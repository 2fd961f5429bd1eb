"""Outputs that depend on what they should not: later tokens, other samples; or not on what they should: positions."""

from collections.abc import Iterator

from normscope.diagnostics.findings import norms
from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import module_ref
from normscope.diagnostics.stats.dependence import MixingRecord

LEAKS_FUTURE = FindingKind("""
leaks-future: {module} sees the future: changing token {token} changes outputs from token {earliest} on
why: The targets are the next tokens, so the model can read its answers from the input. The loss gets low in training,
but generated text will be nonsense.
fix: {fix}
""")
MIXES_SAMPLES = FindingKind("""
mixes-samples: {module} mixes the samples of a batch: changing one changes the outputs of others
why: The output for other samples changes by {change:%} of that of the changed one, in eval mode, so predictions depend
on what else is in the batch. {reason}
fix: {fix}
""")
POSITIONS_UNUSED = FindingKind("""
positions-unused: {module} has no effect: exchanging two tokens only exchanges their outputs
why: The model has positions, but its outputs do not depend on the order of the tokens, so it sees a set.
fix: check that the positions are added to the tokens (x = x + positions), and differ along the sequence
""")
POSITIONS_ALONG_BATCH = FindingKind("""
positions-along-batch: {module} gives each sample of the batch a position, rather than each token
why: A sample gives another output elsewhere in the batch, and all tokens of a sample share one position.
fix: index positions by the axis of the tokens: with (batch, time, features), add pe[: x.size(1)] rather than
pe[: x.size(0)]
""")

MIN_MIXING = 1e-3
"""Smaller effects on other samples, relative to that on the changed one, may be those of limited expert capacity."""


@check("structural")
def check_future(view: RecordView) -> Iterator[Finding]:
    known = {finding.module for finding in norms.check_norm_causality(view)}
    for record in view.record.dependence:
        leak = record.leak
        if leak is not None and leak.module not in known:
            figures = {"token": leak.token, "earliest": leak.earliest, "change": leak.change}
            yield LEAKS_FUTURE.found_in(leak.module, figures, "error", fix=_causal_fix(view, leak.module))


def _causal_fix(view: RecordView, name: str) -> str:
    module = view.modules.get(name)
    kind = "" if module is None else module.kind
    if "Conv" in kind:
        return "pad the convolution on the left only: F.pad(x, ((kernel_size - 1) * dilation, 0)), with padding=0"
    if kind in ("LSTM", "GRU", "RNN"):
        return "use bidirectional=False, and batch_first as the input has it"
    if module is not None and module.norm is not None:
        return "normalize each token on its own, e.g. with nn.LayerNorm over the features"
    return (
        "apply a causal mask: is_causal=True in scaled_dot_product_attention, or before softmax "
        "scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -inf); and take softmax over the keys"
    )


@check("structural")
def check_samples(view: RecordView) -> Iterator[Finding]:
    for record in view.record.dependence:
        mixing = record.mixing
        if mixing is None or mixing.change < MIN_MIXING:
            continue
        reason, fix = _why_mixed(mixing)
        evidence = {"change": mixing.change, "function": mixing.reduces_batch}
        severity = "warning" if _is_certain(mixing) else "note"
        yield MIXES_SAMPLES.found_in(mixing.module, evidence, severity, reason=reason, fix=fix)


def _is_certain(mixing: MixingRecord) -> bool:
    """Whether the first axis cannot be one of nodes, points or tokens, which may depend on each other."""
    if mixing.batches < 2:
        return False
    return mixing.reduces_batch is not None or mixing.dims >= 3


def _why_mixed(mixing: MixingRecord) -> tuple[str, str]:
    if mixing.recurrent_over_batch:
        return (
            f"{mixing.kind} takes (time, batch, features) by default, so it runs over the samples.",
            f"create it with batch_first=True: {mixing.kind}(..., batch_first=True)",
        )
    if mixing.reduces_batch is not None:
        return (
            f"It calls {mixing.reduces_batch} over the first axis, which is that of the samples.",
            f"use the axis of the features, keys or tokens in {mixing.reduces_batch}(dim=...)",
        )
    return (
        "",
        f"look in {module_ref(mixing.module)} for view or reshape where transpose is meant, and for softmax, mean or a "
        "norm over dim 0",
    )


@check("structural")
def check_positions(view: RecordView) -> Iterator[Finding]:
    for record in view.record.dependence:
        if record.positions_along_batch is not None:
            yield POSITIONS_ALONG_BATCH.found_in(record.positions_along_batch, {})
        elif record.positions_unused is not None:
            yield POSITIONS_UNUSED.found_in(record.positions_unused, {})
