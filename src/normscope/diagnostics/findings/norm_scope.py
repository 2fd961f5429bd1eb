"""Norms whose statistics include the wrong values: too few, padding, the future, or a constant bias."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView, bias_of, module_ref
from normscope.diagnostics.record import ModuleRecord
from normscope.render.formatting import format_percent

DEGENERATE = 2
"""One value equals its own mean, and two always normalize to +1 and -1: their magnitude is lost."""

FEW_VALUES = 8
"""The variance of n values is known to within sqrt(2 / (n - 1)): about a half at 8. Wu & He 2018 ("Group
Normalization") see the error of batch norm rise below a batch size of 8."""

PADDED = 0.1
"""A fraction of padding that shifts mean and variance by a tenth, more than the noise of a batch of 200."""


def check_bias_before_norm(view: RecordView) -> list[Finding]:
    """Find biases that the following norm removes. They do no harm, so this is a note."""
    found = []
    for module in view.ran:
        if module.norm is None or not module.norm.removes_bias:
            continue
        for name in module.fed_by:
            producer = view.modules.get(name)
            bias = None if producer is None or producer.norm is not None else bias_of(producer)
            if producer is None or bias is None or not bias.requires_grad or name in view.adders:
                continue
            if len(view.readers.get(name, [])) == 1 and _keeps_channels_apart(module, bias.values.count):
                found.append(
                    Finding(
                        "bias-before-norm",
                        "note",
                        name,
                        f"the bias of {module_ref(name)} has no effect: {module_ref(module.name)} subtracts the mean",
                        {"elements": bias.values.count, "norm": module.name},
                        "The norm subtracts the mean of every channel, and with it any constant; the bias gets only "
                        "rounding noise as its gradient. The norm's own bias takes its place.",
                        f"create {module_ref(name)} with bias=False",
                    )
                )
    return found


def _keeps_channels_apart(module: ModuleRecord, channels: int) -> bool:
    """Whether the channel axis is the only one, besides the batch, that the norm does not reduce."""
    shape = module.input_shapes[0] if module.input_shapes else ()
    axes = module.norm.reduced_axes if module.norm is not None and module.norm.reduced_axes is not None else ()
    rest = [axis for axis in range(1, len(shape)) if axis not in axes]
    return len(rest) == 1 and shape[rest[0]] == channels


def check_norm_sample_size(view: RecordView) -> list[Finding]:
    found = []
    for module in view.ran:
        norm = module.norm
        if norm is None or not module.training or norm.reduction_size is None:
            continue
        across_batch = norm.batches_tracked is not None or (norm.reduced_axes is not None and 0 in norm.reduced_axes)
        if norm.reduction_size <= DEGENERATE or (across_batch and norm.reduction_size < FEW_VALUES):
            found.append(_few_values(module, norm.reduction_size, across_batch))
    return found


def _few_values(module: ModuleRecord, values: int, across_batch: bool) -> Finding:
    degenerate = values <= DEGENERATE
    return Finding(
        "norm-over-few-values",
        "error" if degenerate else "warning",
        module.name,
        f"{module_ref(module.name)} computes each mean over only {values} {'value' if values == 1 else 'values'}",
        {"values": values},
        (
            "One value minus its own mean is zero, and of two only the sign is left: no information passes through."
            if degenerate
            else f"The variance of {values} values is known to within {format_percent((2 / (values - 1)) ** 0.5)}, "
            f"so the output is as much batch noise as signal."
        ),
        "use larger batches, or a norm that does not reduce over the batch: nn.GroupNorm(8, channels) or "
        "nn.LayerNorm(width)"
        if across_batch
        else "reduce over more values: fewer groups in nn.GroupNorm, or nn.LayerNorm over the channels",
    )


def check_norm_over_padding(view: RecordView) -> list[Finding]:
    found = []
    for module in view.ran:
        norm = module.norm
        if norm is None or norm.padding_fraction < PADDED or not module.training:
            continue
        if len(module.input_shapes) > 1 and module.input_shapes[1] == module.input_shapes[0][:2]:  # it got a mask
            continue
        found.append(
            Finding(
                "norm-over-padding",
                "warning",
                module.name,
                f"{format_percent(norm.padding_fraction)} of the positions {module_ref(module.name)} averages over are "
                f"padding",
                {"padding": norm.padding_fraction},
                "Padding counts as much as real positions in the batch mean and variance, so the normalization of a "
                "sequence depends on the lengths of the others.",
                "use a norm over each position, nn.LayerNorm(width), or one that takes a mask: "
                "normscope.BatchNorm('[b s] d', d=width)(x, mask)",
            )
        )
    return found


def check_norm_causality(view: RecordView) -> list[Finding]:
    """Find norms that reduce over time in a model whose attention is causal."""
    layers = [(module, module.attention) for module in view.ran if module.attention is not None]
    if not layers or any(a.future_weight is None or a.future_weight > 0 or a.keys < 2 for _, a in layers):
        return []
    lengths = {attention.keys for _, attention in layers}
    shapes = [module.input_shapes[0] for module, _ in layers if module.input_shapes]
    lengths |= {shape[1] for shape in shapes if len(shape) == 3}
    found = []
    for module in view.ran:
        norm = module.norm
        if norm is None or not norm.reduced_axes or (norm.batches_tracked is not None and not module.training):
            continue
        axis = _time_axis(module, lengths)
        if axis is not None:
            found.append(
                Finding(
                    "norm-leaks-future",
                    "error",
                    module.name,
                    f"{module_ref(module.name)} reduces over time (axis {axis}) in a causal model",
                    {"axis": axis, "length": module.input_shapes[0][axis]},
                    "The attention is causal, but the mean of this norm includes later tokens, so each position sees "
                    "the tokens it has to predict. The loss looks better than it is, and generation token by token "
                    "fails.",
                    "normalize each token separately: nn.LayerNorm(width) or nn.RMSNorm(width)",
                )
            )
    return found


def _time_axis(module: ModuleRecord, lengths: set[int]) -> int | None:
    """The time axis among the reduced axes, for an input (b, s, d) or (b, d, s)."""
    norm = module.norm
    shape = module.input_shapes[0] if module.input_shapes else ()
    if norm is None or not norm.reduced_axes or len(shape) != 3:
        return None
    if 1 in norm.reduced_axes and shape[1] in lengths:
        return 1
    # Otherwise axis 2 may be a width that happens to equal the sequence length.
    over_channels = len(norm.reduced_axes) > 1 or bool(norm.removes_bias)
    return 2 if 2 in norm.reduced_axes and shape[2] in lengths and shape[1] not in lengths and over_channels else None
