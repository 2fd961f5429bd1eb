"""Norms: an eps that is too small or too large, statistics over the wrong values, and stale running statistics."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import module_ref
from normscope.diagnostics.record import ModuleRecord
from normscope.diagnostics.stats.tensors import NormStats

EPS_TOO_SMALL = FindingKind("""
eps-too-small: the eps of {module} has no effect in {dtype}: an all-zero input gives NaN or Inf
why: {reason} an input with zero variance, such as padding or the output of a dead layer, is divided by zero.
fix: set eps=1e-5, or compute the norm in float32: norm(x.float()).to(x.dtype)
""")
EPS_TOO_LARGE = FindingKind("""
eps-too-large: the eps of {module} ({eps}) exceeds the variance of its input ({variance})
why: The output has {output scale:%} of its intended scale and follows that of the input: the layer does not normalize.
fix: set eps to {good_eps} or less, or increase the scale of the input (for embeddings, an initial std of 0.02 or more)
""")
USELESS_BIAS = FindingKind("""
bias-before-norm: the bias of {module} has no effect: {after} subtracts the mean
why: The norm subtracts the mean of every channel, and with it any constant; the bias gets only rounding noise as its
gradient. The norm's own bias takes its place.
fix: create {module} with bias=False
""")
DEGENERATE_MEAN = FindingKind("""
norm-over-few-values: {module} computes each mean over only {values} {noun}
why: A single value normalizes to 0, and two values to +1 and -1: their magnitude is lost.
fix: {fix}
""")
NOISY_MEAN = FindingKind("""
norm-over-few-values: {module} computes each mean over only {values} values
why: The variance of {values} values is known to within {error:%}, so the output is as much batch noise as signal.
fix: {fix}
""")
MORE_SAMPLES = "use larger batches, or a norm that does not reduce over the batch: nn.GroupNorm(8, channels) or "
MORE_SAMPLES += "nn.LayerNorm(width)"
MORE_CHANNELS = "reduce over more values: fewer groups in nn.GroupNorm, or nn.LayerNorm over the channels"
NORM_OVER_PADDING = FindingKind("""
norm-over-padding: {padding:%} of the positions {module} averages over are padding
why: Padding counts as much as real positions in the batch mean and variance, so the normalization of a sequence depends
on the lengths of the others.
fix: use a norm over each position, nn.LayerNorm(width), or one that takes a mask: normscope.BatchNorm('[b s] d',
d=width)(x, mask)
""")
NORM_LEAKS_FUTURE = FindingKind("""
norm-leaks-future: {module} reduces over time (axis {axis}) in a causal model
why: The attention is causal, but the mean of this norm includes later tokens, so each position sees the tokens it has
to predict. The loss looks better than it is, and generation token by token fails.
fix: normalize each token separately: nn.LayerNorm(width) or nn.RMSNorm(width)
""")
STALE_RUNNING_STATISTICS = FindingKind("""
stale-running-statistics: the running statistics of {module} do not match the data: the mean is off by {mean shift}
standard deviations, the variance by a factor of {variance ratio}
why: They were updated with {batches tracked} batches. {effect}
fix: run some batches through the model in train() mode before eval(); check momentum (default 0.1; 0 never updates) and
that the data is preprocessed as in training
""")

WRONG_MOMENTUM = FindingKind("""
stale-running-statistics: the momentum of {module} is {momentum}: {what}
why: In PyTorch, momentum is the weight of the new batch (default 0.1): after {batches} batches, {left:%} of the running
statistics {rest}. In eval mode the layer uses them, so the model differs from the one that was trained.
fix: set momentum={better:.3g}, or leave the default of 0.1 (TensorFlow counts the other way: its 0.99 is 0.01 here)
""")

HALF_OF_SMALLEST = {"float16": 2.0**-25}
"""Half of the smallest positive number of a dtype: anything below rounds to zero. Other dtypes reach below 1e-38."""

WARNING_RATIO = 100.0
"""eps over the variance of the input. At 100 the output is a tenth of what it should be: the layer scales by a constant
and does not normalize. Embeddings of std 0.02 with an eps of 1e-5 have 0.03."""

NOTE_RATIO = 1.0
"""From here on, half of what is under the root is eps. A norm after a branch with a small initialization may be
here."""

DEGENERATE = 2
"""One value equals its own mean, and two always normalize to +1 and -1: their magnitude is lost."""

FEW_VALUES = 8
"""The variance of n values is known to within sqrt(2 / (n - 1)): about a half at 8. Wu & He 2018 ("Group
Normalization") see the error of batch norm rise below a batch size of 8."""

PADDED = 0.1
"""A fraction of padding that shifts mean and variance by a tenth, more than the noise of a batch of 200."""

MAX_MEAN_SHIFT = 1.0
"""Shift of the median channel's mean, in standard deviations: 84% of a ReLU's inputs are then on one side."""

MAX_VARIANCE_RATIO = 4.0
"""Ratio of the median channel's variances: the output is twice as large as in training, or half."""

VISIBLE_SHIFT, VISIBLE_RATIO = 0.3, 2.0
"""With a momentum of zero the statistics stay what they were, so a difference of this size stays too."""

MIN_BATCHES = 4
"""Batches that show how fast running statistics move."""

SLOWEST, FASTEST = 0.005, 0.9
"""Momentum of running statistics. Networks for huge data sets use 0.01 (the 0.99 of TensorFlow) and 0.003; at 0.9 and
more, nine tenths of the statistics are those of the last batch."""

SETTLED = 50
"""Batches after which 0.9^50 = 0.5% of the initial running statistics is left."""

MIN_SAMPLES, MIN_VALUES = 8, 32
"""One image does not represent the data: its channels vary less. The variance of 32 values is known to 25%."""


@check("numeric")
def check_norm_eps(view: RecordView) -> Iterator[Finding]:
    for module, norm in view.norms:
        eps, variance = norm.eps, norm.input_variance
        if norm.finite_for_zeros is False:
            dtype, reason = module.dtype or "its dtype", "Without an eps,"
            if eps is not None and 0 < eps < HALF_OF_SMALLEST.get(dtype, 0.0):
                reason = f"The smallest positive {dtype} is 6e-8, so {eps:.3g} rounds to zero, and"
            evidence = {"eps": "unknown" if eps is None else eps, "dtype": dtype}
            yield EPS_TOO_SMALL.found_in(module, evidence, reason=reason)
        elif eps is not None and variance > 0 and eps >= NOTE_RATIO * variance:
            scale = (variance / (variance + eps)) ** 0.5
            severity = "warning" if eps >= WARNING_RATIO * variance else "note"
            figures = {"eps": eps, "variance": variance, "eps / variance": eps / variance, "output scale": scale}
            yield EPS_TOO_LARGE.found_in(module, figures, severity, good_eps=min(1e-5, variance / 1000))


@check("structural")
def check_bias_before_norm(view: RecordView) -> Iterator[Finding]:
    """Find biases that the following norm removes. They do no harm, so this is a note."""
    for module, norm in view.norms:
        for name in module.fed_by if norm.removes_bias else ():
            producer = view.modules.get(name)
            bias = None if producer is None or producer.norm is not None else producer.bias
            if bias is None or not bias.requires_grad or name in view.adders or len(view.readers.get(name, [])) != 1:
                continue
            if _keeps_channels_apart(module, norm, bias.values.count):
                evidence = {"elements": bias.values.count, "norm": module.name}
                yield USELESS_BIAS.found_in(name, evidence, "note", after=module_ref(module.name))


def _keeps_channels_apart(module: ModuleRecord, norm: NormStats, channels: int) -> bool:
    """Whether the channel axis is the only one, besides the batch, that the norm does not reduce."""
    shape = module.input_shape
    rest = [axis for axis in range(1, len(shape)) if axis not in (norm.reduced_axes or ())]
    return len(rest) == 1 and shape[rest[0]] == channels


@check("structural")
def check_norm_sample_size(view: RecordView) -> Iterator[Finding]:
    for module, norm in view.norms:
        values = norm.reduction_size
        if not module.training or values is None:
            continue
        across_batch = norm.batches_tracked is not None or (norm.reduced_axes is not None and 0 in norm.reduced_axes)
        fix = MORE_SAMPLES if across_batch else MORE_CHANNELS
        if values <= DEGENERATE:
            noun = "value" if values == 1 else "values"
            yield DEGENERATE_MEAN.found_in(module, {"values": values}, "error", noun=noun, fix=fix)
        elif across_batch and values < FEW_VALUES:
            yield NOISY_MEAN.found_in(module, {"values": values}, error=(2 / (values - 1)) ** 0.5, fix=fix)


@check("structural")
def check_norm_over_padding(view: RecordView) -> Iterator[Finding]:
    for module, norm in view.norms:
        shapes = module.input_shapes
        has_mask = len(shapes) > 1 and shapes[1] == shapes[0][:2]
        if norm.padding_fraction >= PADDED and module.training and not has_mask:
            yield NORM_OVER_PADDING.found_in(module, {"padding": norm.padding_fraction})


@check("structural")
def check_norm_causality(view: RecordView) -> Iterator[Finding]:
    """Find norms that reduce over time in a model whose attention is causal."""
    if any(a.future_weight is None or a.future_weight > 0 or a.keys < 2 for _, a in view.attentions):
        return
    lengths = {attention.keys for _, attention in view.attentions}
    lengths |= {module.input_shape[1] for module, _ in view.attentions if len(module.input_shape) == 3}
    for module, norm in view.norms:
        uses_running_statistics = norm.batches_tracked is not None and not module.training
        axis = None if uses_running_statistics else _time_axis(module, norm, lengths)
        if axis is not None:
            yield NORM_LEAKS_FUTURE.found_in(module, {"axis": axis, "length": module.input_shape[axis]}, "error")


def _time_axis(module: ModuleRecord, norm: NormStats, lengths: set[int]) -> int | None:
    """The time axis among the reduced axes, for an input (b, s, d) or (b, d, s)."""
    shape = module.input_shape
    if not norm.reduced_axes or len(shape) != 3:
        return None
    if 1 in norm.reduced_axes and shape[1] in lengths:
        return 1
    # Otherwise axis 2 may be a width that happens to equal the sequence length.
    over_channels = len(norm.reduced_axes) > 1 or bool(norm.removes_bias)
    return 2 if 2 in norm.reduced_axes and shape[2] in lengths and shape[1] not in lengths and over_channels else None


@check("numeric")
def check_running_statistics(view: RecordView) -> Iterator[Finding]:
    """Compare running statistics with the batches: in eval mode, where they are used, or once they have settled."""
    for module, norm in view.norms:
        samples = module.input_shape[0] * max(1, view.record.batches) if module.input_shape else 0
        momentum = norm.momentum if module.training and (norm.batches_tracked or 0) >= MIN_BATCHES else None
        if momentum is not None and norm.drift is not None and not SLOWEST <= momentum < FASTEST:
            if momentum >= FASTEST:
                yield _wrong_momentum(module, norm, "the running statistics are those of the last batch")
            elif momentum == 0 and (norm.drift[0] >= VISIBLE_SHIFT or norm.drift[1] >= VISIBLE_RATIO):
                yield _wrong_momentum(module, norm, "the running statistics never move")
            elif norm.drift[0] >= MAX_MEAN_SHIFT or norm.drift[1] >= MAX_VARIANCE_RATIO:
                yield _wrong_momentum(module, norm, "the running statistics hardly move")
            continue
        if norm.drift is None or samples < MIN_SAMPLES or (norm.reduction_size or 0) < MIN_VALUES:
            continue
        (shift, ratio), tracked = norm.drift, norm.batches_tracked
        if not (shift >= MAX_MEAN_SHIFT or ratio >= MAX_VARIANCE_RATIO):
            continue
        if not module.training or (tracked is not None and tracked >= SETTLED):
            severity = "note" if tracked == 0 else "warning"
            effect = "In eval mode the layer uses them, so the model differs from the one that was trained."
            if tracked == 0:
                effect = "A new model has only their initial values, so the layer does not normalize in eval mode."
            seen = "an unknown number of" if tracked is None else str(tracked)
            evidence = {"mean shift": shift, "variance ratio": ratio, "batches tracked": seen}
            yield STALE_RUNNING_STATISTICS.found_in(module, evidence, severity, effect=effect)


def _wrong_momentum(module: ModuleRecord, norm: NormStats, what: str) -> Finding:
    assert norm.momentum is not None
    assert norm.drift is not None
    momentum, batches = norm.momentum, max(1, norm.batches_tracked or 1)
    is_fast = momentum >= FASTEST
    left = momentum if is_fast else (1 - momentum) ** batches
    return WRONG_MOMENTUM.found_in(
        module,
        {"momentum": momentum, "mean shift": norm.drift[0], "variance ratio": norm.drift[1]},
        what=what,
        batches=batches,
        left=left,
        rest="come from the last one" if is_fast else "are still their initial 0 and 1",
        better=1 - momentum if 0 < 1 - momentum <= 0.1 else 0.1,
    )
