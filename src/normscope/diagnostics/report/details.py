"""All recorded details of a module as text."""

from normscope.diagnostics.record import (
    AttentionStats,
    ModuleRecord,
    NormStats,
    ParameterRecord,
    ResidualJoin,
    TensorStats,
    UnitStats,
)
from normscope.diagnostics.report.summary import format_shape
from normscope.render.formatting import format_number, one_line, pluralize


def details_of(module: ModuleRecord) -> list[tuple[str, str]]:
    """The details as (label, text) pairs; what was not recorded is omitted."""
    lines = [("name", module.name)] if "." in module.name else []
    if module.alias_of is not None:
        lines.append(("alias of", module.alias_of))
    if module.input_shapes:
        lines.append(("input shape", ", ".join(map(format_shape, module.input_shapes))))
    if module.calls > 1:
        sizes = f"; rms of each {', '.join(map(format_number, module.rms_by_call[:8]))}" if module.rms_by_call else ""
        lines.append(("calls", f"{module.calls}{sizes}"))
    lines += [(name, _signal(known)) for name, known in _signals(module) if known is not None]
    if module.saturated is not None:
        lines.append(("saturated", f"{module.saturated:.1%} of the outputs"))
    lines += [(name, _units(known)) for name, known in _all_units(module) if known is not None]
    lines += [("norm", _norm(module.norm))] if module.norm is not None else []
    lines += [("attention", _attention(module.attention))] if module.attention is not None else []
    lines += [("residual", _join(join)) for join in module.joins]
    if module.produced_non_finite:
        lines.append(("non-finite", "produced here from finite inputs and weights"))
    if module.produced_non_finite_gradient:
        lines.append(("non-finite", "produced here in the backward pass"))
    lines += [(parameter.name, _parameter(parameter)) for parameter in module.parameters]
    return [(one_line(name), one_line(words)) for name, words in lines]


def _signals(module: ModuleRecord) -> tuple[tuple[str, TensorStats | None], ...]:
    return ("input", module.input), ("output", module.output), ("gradient", module.gradient)


def _all_units(module: ModuleRecord) -> tuple[tuple[str, UnitStats | None], ...]:
    return ("units", module.units), ("features", module.features)


def _signal(signal: TensorStats) -> str:
    if signal.count == 0:
        return "no finite values"
    parts = [
        f"rms {format_number(signal.rms)}",
        f"mean {format_number(signal.mean)}",
        f"from {format_number(signal.min)} to {format_number(signal.max)}",
        f"kurtosis {format_number(signal.kurtosis)}",
    ]
    parts += [f"{signal.zeros:.1%} zeros"] if signal.zeros > 0 else []
    parts += [f"{signal.non_finite:.2%} non-finite"] if signal.non_finite > 0 else []
    return ", ".join(parts)


def _units(units: UnitStats) -> str:
    words = f"{units.count:,}, median rms {format_number(units.median_rms)}"
    if units.dead:
        words += f", {units.dead:,} dead"
    if units.saturated:
        words += f", {units.saturated:,} saturated"
    if units.outliers:
        number, rms, _ = units.outliers[0]
        words += f", largest: {number} with rms {format_number(rms)}"
    return words


def _norm(norm: NormStats) -> str:
    parts = [f"input variance {format_number(norm.input_variance)}"]
    parts += [f"eps {norm.eps:g}"] if norm.eps is not None else []
    if norm.reduced_axes is not None:
        parts.append(f"reduces over axes {', '.join(map(str, norm.reduced_axes)) or 'of size 1'}")
    parts += [f"{norm.reduction_size:,} values per mean"] if norm.reduction_size is not None else []
    if norm.weight_mean is not None:
        parts.append(f"weight {format_number(norm.weight_mean)} ± {format_number(norm.weight_std)}")
    if norm.drift is not None:
        parts.append(
            f"running mean off by {format_number(norm.drift[0])} std, variance by a factor of "
            f"{format_number(norm.drift[1])}"
        )
    return ", ".join(parts)


def _attention(attention: AttentionStats) -> str:
    parts = [pluralize(attention.heads, "head"), f"up to {pluralize(attention.keys, 'key')}"]
    if attention.entropy:
        parts.append(f"entropy {format_number(min(attention.entropy))} to {format_number(max(attention.entropy))}")
    parts += [f"score std {format_number(attention.score_std)}"] if attention.score_std is not None else []
    parts += (
        [f"max weight on later keys {format_number(attention.future_weight)}"]
        if attention.future_weight is not None
        else []
    )
    return ", ".join(parts)


def _join(join: ResidualJoin) -> str:
    words = f"stream {format_number(join.stream)} + branch {format_number(join.branch)} = {format_number(join.total)}"
    words += f", from {join.branch_source}" if join.branch_source else ""
    return words + (f", then {join.post_norm}" if join.post_norm else "")


def _parameter(parameter: ParameterRecord) -> str:
    parts = [format_shape(parameter.shape), parameter.dtype, f"rms {format_number(parameter.values.rms)}"]
    parts += [f"gradient {format_number(parameter.gradient.rms)}"] if parameter.gradient is not None else []
    parts += [f"relative update {format_number(parameter.update_ratio)}"] if parameter.update_ratio is not None else []
    parts += [f"tied to {parameter.alias_of}"] if parameter.alias_of is not None else []
    parts += [] if parameter.requires_grad else ["frozen"]
    return ", ".join(parts)
