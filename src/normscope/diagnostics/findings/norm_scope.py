"""Norms whose statistics are taken over the wrong numbers: too few, padding, the future, or a bias's constant."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, bias_of, called, percent
from normscope.diagnostics.record import ModuleRecord

NO_STATISTIC = 2
"""One value is its own mean, and two are always at +1 and -1 after it: nothing of their size is left."""

FEW_VALUES = 8
"""Of n values the variance is known to within sqrt(2 / (n - 1)): at 8 to about a half. Wu and He 2018 ("Group
Normalization") see batch norm's error rise from 8 values of the batch downwards."""

PADDED = 0.1
"""A share of padding that moves mean and variance by a tenth, more than the noise of a batch of 200."""


def bias_before_norm(view: View) -> list[Finding]:
    """A bias whose constant the norm after it takes away. It does no harm, so it is a note."""
    found = []
    for module in view.ran:
        if module.norm is None or not module.norm.removes_bias:
            continue
        for name in module.fed_by:
            maker = view.modules.get(name)
            bias = None if maker is None or maker.norm is not None else bias_of(maker)
            if maker is None or bias is None or not bias.requires_grad or name in view.joining:
                continue
            if len(view.readers.get(name, [])) == 1 and _keeps_apart(module, bias.values.count):
                found.append(
                    Finding(
                        "bias-before-norm",
                        "note",
                        name,
                        f"the bias of {called(name)} does nothing: {called(module.name)} takes its mean away",
                        {"numbers": bias.values.count, "norm": module.name},
                        "The norm subtracts the mean of every channel, and so every constant; the bias gets no "
                        "gradient but rounding. The norm's own bias does its work.",
                        f"make {called(name)} with bias=False",
                    )
                )
    return found


def _keeps_apart(module: ModuleRecord, channels: int) -> bool:
    """Whether the one axis besides the batch that the norm does not share is that of the channels."""
    shape = module.input_shapes[0] if module.input_shapes else ()
    shares = module.norm.reduced_axes if module.norm is not None and module.norm.reduced_axes is not None else ()
    rest = [axis for axis in range(1, len(shape)) if axis not in shares]
    return len(rest) == 1 and shape[rest[0]] == channels


def starved_norm(view: View) -> list[Finding]:
    found = []
    for module in view.ran:
        norm = module.norm
        if norm is None or not module.training or norm.reduction_size is None:
            continue
        across_batch = norm.batches_tracked is not None or (norm.reduced_axes is not None and 0 in norm.reduced_axes)
        if norm.reduction_size <= NO_STATISTIC or (across_batch and norm.reduction_size < FEW_VALUES):
            found.append(_starved(module, norm.reduction_size, across_batch))
    return found


def _starved(module: ModuleRecord, values: int, across_batch: bool) -> Finding:
    hopeless = values <= NO_STATISTIC
    what = "value shares" if values == 1 else "values share"
    return Finding(
        "norm-of-few-values",
        "error" if hopeless else "warning",
        module.name,
        f"in {called(module.name)} only {values} {what} a mean",
        {"values": values},
        (
            "One value minus its own mean is zero, and of two only the sign is left: the layer passes nothing on."
            if hopeless
            else f"Of {values} values the variance is known to within {percent((2 / (values - 1)) ** 0.5)}, so the "
            f"output is noise of the batch as much as signal."
        ),
        "give larger batches, or use a norm that does not look across the batch: nn.GroupNorm(8, channels) or "
        "nn.LayerNorm(width)"
        if across_batch
        else "let more values share a statistic: fewer groups in nn.GroupNorm, or nn.LayerNorm over the channels",
    )


def norm_over_padding(view: View) -> list[Finding]:
    found = []
    for module in view.ran:
        norm = module.norm
        if norm is None or norm.padding_fraction < PADDED or not module.training:
            continue
        if len(module.input_shapes) > 1 and module.input_shapes[1] == module.input_shapes[0][:2]:  # it was given a mask
            continue
        found.append(
            Finding(
                "norm-over-padding",
                "warning",
                module.name,
                f"{percent(norm.padding_fraction)} of what {called(module.name)} takes its mean of is padding",
                {"padding": norm.padding_fraction},
                "Padding counts as much as real positions in the mean and the variance of the batch, so how a text is "
                "normalised depends on how long the others are.",
                "use a norm over each position, nn.LayerNorm(width), or one that takes a mask: "
                "normscope.BatchNorm('[b s] d', d=width)(x, mask)",
            )
        )
    return found


def leaks_future(view: View) -> list[Finding]:
    """A norm that shares statistics along time in a model whose attention never looks ahead."""
    looks = [(module, module.attention) for module in view.ran if module.attention is not None]
    if not looks or any(look.future_weight is None or look.future_weight > 0 or look.keys < 2 for _, look in looks):
        return []
    lengths = {look.keys for _, look in looks}
    lengths |= {
        module.input_shapes[0][1] for module, _ in looks if module.input_shapes and len(module.input_shapes[0]) == 3
    }
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
                    f"{called(module.name)} shares its statistics along time (axis {axis}) in a causal model",
                    {"axis": axis, "length": module.input_shapes[0][axis]},
                    "No attention looks ahead, but this norm's mean is taken over later tokens too, so each token is "
                    "told of those that it has to predict. The loss looks better than it is, and writing word by word "
                    "fails.",
                    "normalise each token by itself: nn.LayerNorm(width) or nn.RMSNorm(width)",
                )
            )
    return found


def _time_axis(module: ModuleRecord, lengths: set[int]) -> int | None:
    """The axis of time among those that share, of an input (b, s, d) or (b, d, s)."""
    norm = module.norm
    shape = module.input_shapes[0] if module.input_shapes else ()
    if norm is None or not norm.reduced_axes or len(shape) != 3:
        return None
    if 1 in norm.reduced_axes and shape[1] in lengths:
        return 1
    of_channels = len(norm.reduced_axes) > 1 or bool(
        norm.removes_bias
    )  # else it may be the width, that is as long as time
    return 2 if 2 in norm.reduced_axes and shape[2] in lengths and shape[1] not in lengths and of_channels else None
