"""Modules that are put together wrongly: called too often, alike but for one, linear in a row, shared, dropped."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import is_inside, module_ref, parent_name
from normscope.diagnostics.record import ModuleRecord
from normscope.diagnostics.stats.structure import PeerDifference

CALLED_MORE_OFTEN = FindingKind("""
called-more-often-than-peers: {module} runs {times} times in each forward pass, the {peers} similar modules once
why: Its weights are used {times} times, where each layer is meant to have its own.
fix: look for a repeated line, a wrong index or a wrong name in forward, and call {module} once
""")
DIFFERS_FROM_PEERS = FindingKind("""
differs-from-peers: {module} differs from the {peers} similar modules: {attribute} is {value}, not {others}
why: In a stack of otherwise identical blocks, one that computes something else is usually a mistake.
fix: make {attribute} the same in all of them, or give this one a class of its own if it is intended
""")
MISSING_RESIDUAL = FindingKind("""
missing-residual: {module} adds its input {adds}, the {peers} similar modules add theirs {peers add} times
why: Without a residual connection, the signal from all earlier blocks, and their gradient, pass only through the layers
of this block.
fix: return x + block(x), as in the other blocks
""")
LINEAR_IN_A_ROW = FindingKind("""
linear-layers-in-a-row: nothing nonlinear lies between {module} and {next}{more}
why: Without a nonlinearity in between, they compute nothing that a single linear layer cannot.
fix: put an activation such as nn.ReLU() between them, or merge them
""")
SHARED_LAYERS = FindingKind("""
shared-parameters: {count} layers of {module} are the same module
why: [layer] * {count} repeats one module instead of copying it, so all layers share the same weights.
fix: create each layer: nn.ModuleList(make_layer() for _ in range({count}))
""")
TIED_LAYERS = FindingKind("""
shared-parameters: {module} has the weight of {other}, but a bias of its own
why: Sharing a weight but not the bias is usually a mistake: the two layers cannot learn different things.
fix: give {module} a weight of its own, unless they are meant to be tied
""")
DROPOUT_TOO_LARGE = FindingKind("""
dropout-too-large: {module} drops {p:%} of the values
why: The rest is multiplied by {factor}, so little but noise is left. The p of dropout is the part that is dropped, not
the part that is kept.
fix: use p = {kept}, or 0.1 to 0.5
""")
DROPOUT_ON_LOGITS = FindingKind("""
dropout-on-logits: {loss} gets the output of a dropout in {module} as predictions
why: In training, some predictions are set to zero and the others are scaled up. This adds noise to the loss that no
weights can remove.
fix: apply dropout before the last layer, not after it
""")

_TRAILING = re.compile(r"\d+$")
_STRONG = re.compile(
    r"(^|[._])(eps|p|dropout\w*|\w*heads?|n_head|scale|scaling|is_causal|causal|norm_first|residual|fill|\w*mask|tril|bias)$"
)
"""Attributes that have the same value in all blocks, also in the first and in the last."""

TOO_LARGE = 0.8


@check("structural")
def check_calls(view: RecordView) -> Iterator[Finding]:
    """Find modules with weights that run twice as often as at least two others of the same kind and shapes."""
    batches = view.record.batches
    for group in _alike(view):
        counts = Counter(module.calls for module in group)
        often = [module for module in group if module.calls > batches]
        rest = [module for module in group if module not in often]
        if len(often) != 1 or not batches or view.record.interrupted or often[0].calls % batches:
            continue
        times, idle = often[0].calls // batches, counts.get(0, 0)
        if (len(rest) >= 2 and counts[batches] == len(rest)) or (idle and counts[batches] + idle == len(rest)):
            figures = {"times": times, "peers": len(rest)}
            yield CALLED_MORE_OFTEN.found_in(often[0], figures)


def _alike(view: RecordView) -> Iterator[list[ModuleRecord]]:
    """Groups of siblings whose names differ only in a number, with the same classes and weights."""
    groups: dict[tuple[object, ...], list[ModuleRecord]] = defaultdict(list)
    inside: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for module in view.modules.values():
        shapes = tuple(parameter.shape for parameter in module.parameters)
        parts = module.name.split(".")
        for i in range(1, len(parts) + 1):
            inside[".".join(parts[:i])].append((*parts[i:], module.kind, shapes))
    for module in view.modules.values():
        kinds = inside[module.name]
        has_weights = any(kind[-1] for kind in kinds)
        if module.name and not module.is_function and has_weights and _TRAILING.search(module.name):
            groups[_TRAILING.sub("", module.name), module.kind, tuple(kinds)].append(module)
    yield from (group for group in groups.values() if len(group) >= 2)


@check("structural")
def check_peers(view: RecordView) -> Iterator[Finding]:
    """Find blocks of a row that differ from all others in an attribute, or add their input less often."""
    missing = set()
    for finding in _missing_residuals(view):
        missing.add(finding.module)
        yield finding
    by_module: dict[str, list[PeerDifference]] = defaultdict(list)
    for difference in view.record.structure.differences:
        if view.modules.get(difference.module) is not None and difference.module not in missing:
            by_module[difference.module].append(difference)
    for name, found in by_module.items():
        if any(is_inside(name, other) and name != other for other in by_module):
            continue
        strong = [d for d in found if not d.is_class and _STRONG.search(d.attribute)]
        inner = [d for d in found if d.is_inside and d.peers >= MIN_PEERS]
        first = (strong or inner or found)[0]
        evidence = {d.attribute: f"{d.value}, others {d.others}" for d in found}
        values = {"attribute": first.attribute, "value": first.value, "others": first.others, "peers": first.peers}
        yield DIFFERS_FROM_PEERS.found_in(name, evidence, "warning" if strong or inner else "note", **values)


MIN_PEERS = 3
"""Of three blocks, the middle one may be another on purpose; of four or more, seldom a single one inside."""


def _missing_residuals(view: RecordView) -> Iterator[Finding]:
    for group in _alike(view):
        ran = [m for m in group if m.order is not None and m.input_shape == (m.output_shapes or ((),))[0]]
        if len(ran) < MIN_PEERS or len(ran) < len(group):
            continue
        joins = {m.name: sum(len(o.joins) for o in view.ran if is_inside(o.name, m.name)) for m in ran}
        counts = Counter(joins.values())
        if len(counts) == 2 and min(joins.values()) < max(joins.values()) and counts[min(joins.values())] == 1:
            odd = min(ran, key=lambda module: joins[module.name])
            most = max(joins.values())
            found = joins[odd.name]
            adds = f"{found} times" if found else "nowhere"
            yield MISSING_RESIDUAL.found_in(odd, {"peers add": most, "peers": len(ran) - 1}, adds=adds)


@check("structural")
def check_linear_layers(view: RecordView) -> Iterator[Finding]:
    """Find linear layers that read the output of another one, which nothing else reads."""
    returned = set(view.record.structure.returned)
    chains: list[list[str]] = []
    for module, _ in () if view.record.interrupted else view.linear:
        before = _linear_before(view, module, returned)
        if before is not None:
            chain = next((chain for chain in chains if chain[-1] == before), None)
            if chain is None:
                chains.append([before, module.name])
            else:
                chain.append(module.name)
    for chain in chains:
        more = "" if len(chain) == 2 else f", nor in the {len(chain)} layers up to {module_ref(chain[-1])}"
        # An input projection before a row of blocks is common, and does little harm.
        severity = "warning" if len(chain) > 2 or parent_name(chain[0]) == parent_name(chain[1]) else "note"
        evidence = {"layers": ", ".join(chain)}
        yield LINEAR_IN_A_ROW.found_in(chain[0], evidence, severity, next=module_ref(chain[1]), more=more)


def _linear_before(view: RecordView, module: ModuleRecord, returned: set[str]) -> str | None:
    """The linear layer whose output a linear layer reads, without anything in between but dropout."""
    reader, producer = module, module
    while True:
        if len(reader.fed_by) != 1:
            return None
        producer = view.modules.get(reader.fed_by[0], module)
        if producer is module or producer.name in returned or producer.name in view.adders:
            return None
        if [
            r for r in view.readers.get(producer.name, []) if not is_inside(reader.name, r.name)
        ] or producer.calls != module.calls:
            return None
        if producer.kind not in ("Dropout", "Identity"):
            break
        reader = producer
    first, second = producer.linear_weight, module.linear_weight
    if (
        first is None
        or second is None
        or producer.kind != module.kind
        or module.kind not in ("Linear", "Conv2d", "Conv1d")
    ):
        return None
    if not (first.requires_grad and second.requires_grad) or first.shape[2:] != second.shape[2:]:
        return None
    if module.kind != "Linear" and (
        producer.is_grouped_conv or module.is_grouped_conv or math.prod(first.shape[2:]) == 1
    ):
        return None
    width, inputs, outputs = first.shape[0], first.shape[1], second.shape[0]
    return producer.name if second.shape[1] == width and width >= min(inputs, outputs) else None


@check("structural")
def check_shared_layers(view: RecordView) -> Iterator[Finding]:
    """Find lists that hold one module several times, and siblings that share a weight only."""
    same: dict[tuple[str, str], list[ModuleRecord]] = defaultdict(list)
    for module in view.record.modules:
        original = module.alias_of
        last = module.name.rpartition(".")[2]
        if original is not None and last.isdigit() and parent_name(module.name) == parent_name(original):
            same[parent_name(module.name), original].append(module)
    for (holder, original), aliases in same.items():
        inside = [m for m in view.modules.values() if is_inside(m.name, original)]
        is_list = view.modules[holder].kind in ("ModuleList", "Sequential") if holder in view.modules else False
        if is_list and any(p.is_matrix for m in inside for p in m.parameters):
            yield SHARED_LAYERS.found_in(holder, {"count": len(aliases) + 1})
    for module in view.ran:
        weight, bias = module.linear_weight, module.bias
        if weight is None or weight.alias_of is None or bias is None or bias.alias_of is not None:
            continue
        other = view.modules.get(parent_name(weight.alias_of))
        if (
            other is not None
            and other.kind == module.kind == "Linear"
            and other.order is not None
            and other.bias is not None
        ):
            yield TIED_LAYERS.found_in(module, {"weight": weight.alias_of}, other=module_ref(other.name))


@check("structural")
def check_dropouts(view: RecordView) -> Iterator[Finding]:
    for used in view.record.structure.dropouts:
        evidence = {"p": used.p or None, "line": used.source or None}
        if used.loss:
            yield DROPOUT_ON_LOGITS.found_in(used.module, evidence, loss=used.loss)
        if used.p >= TOO_LARGE:
            factor = "infinity" if used.p >= 1 else f"{1 / (1 - used.p):.3g}"
            yield DROPOUT_TOO_LARGE.found_in(used.module, evidence, factor=factor, kept=f"{1 - used.p:.3g}")
