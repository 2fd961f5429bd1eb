"""Signals that vanish or explode with depth: activations, gradients, repeated calls, and the residual stream."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import is_inside, module_ref, name_pattern, parent_name
from normscope.diagnostics.record import ModuleRecord
from normscope.diagnostics.stats.tensors import ResidualJoin

VANISHING_ACTIVATIONS = FindingKind("""
vanishing-activations: activation rms shrinks {factor} times from {first} to {last}
why: Each of {layers} layers scales its input by about {factor per layer}. The output hardly depends on the input, so
the loss cannot distinguish inputs.
fix: {after_training}initialize the weights for a gain of 1 per layer (now {factor per layer}), e.g.
nn.init.kaiming_normal_(weight) before a ReLU, or add norms between the layers
""")
EXPLODING_ACTIVATIONS = FindingKind("""
exploding-activations: activation rms grows {factor} times from {first} to {last}
why: Each of {layers} layers scales its input by about {factor per layer}. Outputs and loss become huge, and one update
of any layer makes training diverge.
fix: {after_training}initialize the weights for a gain of 1 per layer (now {factor per layer}), e.g.
nn.init.kaiming_normal_(weight) before a ReLU, or add norms between the layers
""")
EXPLODING_CALLS = FindingKind("""
exploding-activations: the output rms of {module} grows {factor} times over {calls} calls
why: The module is applied to its own output repeatedly, and each call scales it by about {factor per call}.
fix: {after_training}initialize its recurrent weights as orthogonal matrices, nn.init.orthogonal_(weight), or apply a
bounded activation such as tanh to the state (gain per call is {factor per call}, should be at most 1)
""")
VANISHING_GRADIENTS = FindingKind("""
vanishing-gradients: the gradient norm shrinks {factor} times from {last} back to {first}
why: In the backward pass each layer scales the gradient by about {factor per layer}. With one learning rate for all
layers, {first} learns {factor} times more slowly than {last}.
fix: {after_training}use an activation and initialization with a gain near 1 per layer (now {factor per layer}): ReLU or
GELU with nn.init.kaiming_normal_(weight), norms between the layers, or residual connections
""")
EXPLODING_GRADIENTS = FindingKind("""
exploding-gradients: the gradient norm grows {factor} times from {last} back to {first}
why: In the backward pass each layer scales the gradient by about {factor per layer}. A learning rate that suits {last}
makes {first} diverge.
fix: {after_training}use an activation and initialization with a gain near 1 per layer (now {factor per layer}): ReLU or
GELU with nn.init.kaiming_normal_(weight), norms between the layers, or residual connections
""")
GROWING_STREAM = FindingKind("""
residual-stream-grows: the residual stream grows {growth in second half} times over its last {additions} additions, up
to {module}
why: Each addition scales the stream by about {factor per addition}: the branches are proportional to the stream, and
the last blocks dominate the first ones in the output and in the gradient.
fix: {after_training}add a norm at the start of every branch (pre-norm), or use a smaller initialization for the last
weight of each branch: divide it by sqrt(2 * depth), or set it to zero
""")
DOMINATING_BRANCH = FindingKind("""
residual-branch-dominates: a branch of {module} is {branch / stream} times larger than the residual stream it is added
to
why: After the addition, {kept:%} of the stream's rms is the previous stream; the rest comes from {source}.
fix: {after_training}check the last weight of {source} and any factor on its output; use a smaller initialization
""")

MIN_LAYERS = 4
"""With fewer layers, one odd layer looks like a trend."""

MAX_FACTOR = 1000.0
"""Total change of scale over a stack. A gain of g per layer gives g^depth, and theory (He et al. 2015) asks for g = 1.
PyTorch's default initialization before a ReLU has g = 1 / sqrt(6), which reaches 1/1000 at the eighth layer, about
where plain networks stop training without a norm or a better initialization."""

MIN_STEADY_FACTOR = 100.0
"""Minimum change without the largest single step; otherwise one layer is the cause, not the depth."""

HOPELESS = 2.0**23
"""Beyond this, one end of the stack is below float32's rounding of the other."""

MIN_JOINS = 6
"""Three blocks of two branches."""

MAX_GROWTH = 10.0
"""Growth of the stream over the second half of its additions. Branches of equal rms give sqrt(2) (the variance grows
linearly with depth), branches that grow linearly with depth give 2^1.5 = 2.8, quadratically 2^2.5 = 5.7. Anything
beyond 10 is exponential growth: each branch is proportional to the stream itself."""

NOTE_RATIO = 10.0
"""A branch this many times larger than the stream leaves 1 / sqrt(1 + 10^2) = 10% of the previous stream."""

WARNING_RATIO = 100.0
"""Leaves 1%: a warning, unless a few elements cause it."""

MASSIVE_KURTOSIS = 100.0
"""Kurtosis of a branch from which on a few elements dominate its rms. Trained language models have a block that writes
one or two features of the first token, hundreds of times larger than the stream (Sun et al. 2024, "Massive
Activations"); a normal distribution has 3."""


@dataclass(frozen=True)
class Trend:
    """How a value changes from the first to the last layer of a stack.

    Args:
        total: last over first.
        steady: the same without the largest single step: the part that many layers contribute to.
        layer: geometric mean of the factor per layer.
    """

    total: float
    steady: float
    layer: float


@check("numeric")
def check_depth(view: RecordView) -> Iterator[Finding]:
    """Find activations and gradients that vanish or explode in stacks of similar layers.

    There is one finding of each kind per parent, for the longest stack: layers and activations vanish together.
    """
    found: dict[tuple[str, str], Finding] = {}
    for stack in sorted(_stacks(view), key=len, reverse=True):
        for finding in _in_stack(view, stack):
            found.setdefault((finding.name, parent_name(finding.module)), finding)
    for module in view.ran:
        outer = [finding.module for finding in found.values() if finding.name == "exploding-activations"]
        calls = [] if module.is_function else list(module.rms_by_call)
        if not any(is_inside(module.name, name) for name in outer):
            for finding in _by_trend(view, (None, EXPLODING_CALLS), module, calls, "call", len(calls)):
                found.setdefault((finding.name, parent_name(finding.module)), finding)
    yield from found.values()


def _in_stack(view: RecordView, stack: list[ModuleRecord]) -> Iterator[Finding]:
    first, last, layers = stack[0], stack[-1], len(stack)
    ends = {"first": module_ref(first.name), "last": module_ref(last.name)}
    if not any(is_inside(owner.name, module.name) for module in stack for owner, _ in view.joins):
        # Residual streams are checked by check_residual_stream.
        signals = [first.input, *(module.output for module in stack)]
        levels = [signal.rms for signal in signals if signal is not None and signal.count]
        kinds = VANISHING_ACTIVATIONS, EXPLODING_ACTIVATIONS
        yield from _by_trend(view, kinds, last, levels, "layer", layers, **ends)
    # The norm of a gradient, not its rms: pooling that spreads a gradient over more values does not shrink it.
    gradients = [module.gradient for module in reversed(stack)]
    norms = [0.0 if gradient is None else gradient.rms * math.sqrt(gradient.count) for gradient in gradients]
    yield from _by_trend(view, (VANISHING_GRADIENTS, EXPLODING_GRADIENTS), first, norms, "layer", layers, **ends)


def _by_trend(
    view: RecordView,
    kinds: tuple[FindingKind | None, FindingKind],
    module: ModuleRecord,
    values: list[float],
    unit: str,
    count: int,
    **ends: str,
) -> Iterator[Finding]:
    """A finding of the first kind if the values vanish, of the second if they explode."""
    change = trend(values)
    if change is None:
        return
    exploding = change.total >= MAX_FACTOR and change.steady >= MIN_STEADY_FACTOR
    vanishing = change.total <= 1 / MAX_FACTOR and change.steady <= 1 / MIN_STEADY_FACTOR
    kind = kinds[1] if exploding else kinds[0] if vanishing else None
    if kind is not None:
        factor = max(change.total, 1 / change.total)
        evidence = {"total factor": change.total, f"factor per {unit}": change.layer, f"{unit}s": count}
        severity = "error" if factor > HOPELESS else "warning"
        yield kind.found_in(
            module, evidence, severity, factor=factor, after_training=view.after_training_advice, **ends
        )


def _stacks(view: RecordView) -> list[list[ModuleRecord]]:
    """All stacks in execution order: numbered modules of one class, and the linear layers of one parent."""
    groups: dict[tuple[str, str], list[ModuleRecord]] = defaultdict(list)
    linear: dict[str, list[ModuleRecord]] = defaultdict(list)
    for module in view.ran:
        if name_pattern(module.name).endswith("*"):  # no function: these end with ()
            groups[name_pattern(module.name), module.kind].append(module)
    for module, _ in view.linear:
        linear[parent_name(module.name)].append(module)
    found = list(groups.values())
    found += [
        group for name, group in linear.items() if group not in found and _is_chain(view.modules.get(name), group)
    ]
    return [group for group in found if len(group) >= MIN_LAYERS and not _is_parallel(group)]


def _is_chain(parent: ModuleRecord | None, group: list[ModuleRecord]) -> bool:
    """Whether siblings with different names run in sequence; query, key and value projections do not."""
    return parent is None or (not parent.joins and parent.attention is None and len({m.kind for m in group}) <= 2)


def _is_parallel(group: list[ModuleRecord]) -> bool:
    """Whether several of them read the same output: heads or experts, not a stack."""
    sources = [module.fed_by for module in group if module.fed_by]
    return len(set(sources)) < len(sources)


def trend(values: list[float]) -> Trend | None:
    """The trend of values in execution order, ignoring zeros and non-finite values; None if there are too few.

    >>> trend([1.0, 0.1, 0.01, 0.001]).layer
    0.1
    """
    logs = [math.log(value) for value in values if 0 < value < math.inf]
    if len(logs) < MIN_LAYERS:
        return None
    steps = [b - a for a, b in itertools.pairwise(logs)]
    total = sum(steps)
    largest = max(steps) if total > 0 else min(steps)
    return Trend(_exp(total), _exp(total - largest), round(_exp(total / len(steps)), 12))


def _exp(x: float) -> float:
    """e^x, clamped to avoid overflow."""
    return math.exp(max(-700.0, min(700.0, x)))


@check("numeric")
def check_residual_stream(view: RecordView) -> Iterator[Finding]:
    """Find a stream that grows exponentially, and branches after the first block that dominate it."""
    joins = [(module, join) for module, join in view.joins if join.total > 0]
    if len(joins) < MIN_JOINS:
        return
    yield from _growth(view, joins)
    for module, join in joins[2:]:
        ratio = join.branch / join.stream if join.stream > 0 else 0.0
        if ratio >= NOTE_RATIO and join.post_norm is None:
            source = view.modules.get(join.branch_source or "")
            massive = source is None or source.output is None or source.output.kurtosis >= MASSIVE_KURTOSIS
            yield DOMINATING_BRANCH.found_in(
                module,
                {"branch / stream": ratio, "stream": join.stream, "branch": join.branch},
                "warning" if ratio >= WARNING_RATIO and not massive else "note",
                kept=1 / math.hypot(1, ratio),
                source=module_ref(join.branch_source or module.name),
                after_training=view.after_training_advice,
            )


def _growth(view: RecordView, joins: list[tuple[ModuleRecord, ResidualJoin]]) -> Iterator[Finding]:
    """Growth over the second half: the first branch may well be larger than a small initial embedding."""
    half = joins[len(joins) // 2 - 1 :]
    growth = trend([join.total for _, join in half])
    if growth is not None and growth.total >= MAX_GROWTH and growth.steady >= MAX_GROWTH**0.5:
        module, last = half[-1]
        evidence = {
            "growth in second half": growth.total,
            "factor per addition": growth.layer,
            "first rms": joins[0][1].total,
            "last rms": last.total,
            "last branch / stream": last.branch / max(last.stream, 1e-30),
        }
        advice = view.after_training_advice
        yield GROWING_STREAM.found_in(module, evidence, additions=len(half) - 1, after_training=advice)
