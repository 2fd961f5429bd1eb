"""All recorded details of a module as text."""

from normscope.diagnostics.record import ModuleRecord, ParameterRecord
from normscope.diagnostics.report.summary import format_shape
from normscope.diagnostics.stats.tensors import AttentionStats, NormStats, ResidualJoin, TensorStats, UnitStats
from normscope.render.formatting import format_number, one_line, pluralize


def details_of(module: ModuleRecord) -> list[tuple[str, str]]:
    """The details as (label, text) pairs; what was not recorded is omitted."""
    each = f"; rms of each {', '.join(map(format_number, module.rms_by_call[:8]))}" if module.rms_by_call else ""
    lines = [
        ("name", module.name if "." in module.name else ""),
        ("alias of", module.alias_of),
        ("input shape", ", ".join(map(format_shape, module.input_shapes))),
        ("calls", f"{module.calls}{each}" if module.calls > 1 else ""),
        *((name, _signal(signal)) for name in ("input", "output", "gradient") if (signal := getattr(module, name))),
        ("saturated", "" if module.saturated is None else f"{module.saturated:.1%} of the outputs"),
        *((name, _units(units)) for name in ("units", "features") if (units := getattr(module, name))),
        ("norm", module.norm and _norm(module.norm)),
        ("attention", module.attention and _attention(module.attention)),
        *(("residual", _join(join)) for join in module.joins),
        ("non-finite", "produced here from finite inputs and weights" * module.produced_non_finite),
        ("non-finite", "produced here in the backward pass" * module.produced_non_finite_gradient),
        *((parameter.name, _parameter(parameter)) for parameter in module.parameters),
    ]
    return [(one_line(name), one_line(words)) for name, words in lines if words]


def _listed(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)


def _figure(name: str, value: float | None) -> str:
    """A number after its name; "" if it is unknown."""
    return "" if value is None else f"{name} {format_number(value)}"


def _signal(signal: TensorStats) -> str:
    if signal.count == 0:
        return "no finite values"
    return _listed(
        _figure("rms", signal.rms),
        _figure("mean", signal.mean),
        f"from {format_number(signal.min)} to {format_number(signal.max)}",
        _figure("kurtosis", signal.kurtosis),
        f"{signal.zeros:.1%} zeros" if signal.zeros > 0 else "",
        f"{signal.non_finite:.2%} non-finite" if signal.non_finite > 0 else "",
    )


def _units(units: UnitStats) -> str:
    largest = units.outliers[0] if units.outliers else None
    return _listed(
        f"{units.count:,}",
        _figure("median rms", units.median_rms),
        f"{units.dead:,} dead" if units.dead else "",
        f"{units.saturated:,} saturated" if units.saturated else "",
        f"largest: {largest[0]} with rms {format_number(largest[1])}" if largest else "",
    )


def _norm(norm: NormStats) -> str:
    axes = None if norm.reduced_axes is None else ", ".join(map(str, norm.reduced_axes)) or "of size 1"
    weight, (shift, ratio) = _figure("weight", norm.weight_mean), norm.drift or (None, None)
    return _listed(
        _figure("input variance", norm.input_variance),
        "" if norm.eps is None else f"eps {norm.eps:g}",
        "" if axes is None else f"reduces over axes {axes}",
        "" if norm.reduction_size is None else f"{norm.reduction_size:,} values per mean",
        weight and f"{weight} ± {format_number(norm.weight_std)}",
        "" if shift is None else f"running mean off by {format_number(shift)} std",
        _figure("variance by a factor of", ratio),
    )


def _attention(attention: AttentionStats) -> str:
    entropy = [format_number(pick(attention.entropy)) for pick in (min, max)] if attention.entropy else []
    return _listed(
        pluralize(attention.heads, "head"),
        f"up to {pluralize(attention.keys, 'key')}",
        f"entropy {' to '.join(entropy)}" if entropy else "",
        _figure("score std", attention.score_std),
        _figure("max weight on later keys", attention.future_weight),
    )


def _join(join: ResidualJoin) -> str:
    return _listed(
        f"stream {format_number(join.stream)} + branch {format_number(join.branch)} = {format_number(join.total)}",
        f"from {join.branch_source}" if join.branch_source else "",
        f"then {join.post_norm}" if join.post_norm else "",
    )


def _parameter(parameter: ParameterRecord) -> str:
    return _listed(
        format_shape(parameter.shape),
        parameter.dtype,
        _figure("rms", parameter.values.rms),
        "" if parameter.gradient is None else _figure("gradient", parameter.gradient.rms),
        _figure("relative update", parameter.update_ratio),
        "" if parameter.alias_of is None else f"tied to {parameter.alias_of}",
        "" if parameter.requires_grad else "frozen",
    )
