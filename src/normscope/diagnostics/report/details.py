"""Everything that is known of one module, in a few lines of words."""

from normscope.diagnostics.record import Attention, Join, Module, NormFigures, Parameter, Signal, Units
from normscope.diagnostics.report.summary import shape
from normscope.render.formatting import figure, in_one_line, many


def details_of(module: Module) -> list[tuple[str, str]]:
    """The lines, each with its name. What was not seen has none."""
    lines = [("name", module.name)] if "." in module.name else []
    if module.same_as is not None:
        lines.append(("same as", module.same_as))
    if module.inputs:
        lines.append(("given", ", ".join(map(shape, module.inputs))))
    if module.calls > 1:
        sizes = f"; rms of each {', '.join(map(figure, module.by_call[:8]))}" if module.by_call else ""
        lines.append(("calls", f"{module.calls}{sizes}"))
    lines += [(name, _signal(known)) for name, known in _signals(module) if known is not None]
    if module.saturated is not None:
        lines.append(("saturated", f"{module.saturated:.1%} of the outputs"))
    lines += [(name, _units(known)) for name, known in _all_units(module) if known is not None]
    lines += [("norm", _norm(module.norm))] if module.norm is not None else []
    lines += [("attention", _attention(module.attention))] if module.attention is not None else []
    lines += [("join", _join(join)) for join in module.joins]
    if module.made_unreal:
        lines.append(("not finite", "made of finite inputs and finite weights, here"))
    if module.made_unreal_gradient:
        lines.append(("not finite", "made on the way back, here"))
    lines += [(parameter.name, _parameter(parameter)) for parameter in module.parameters]
    return [(in_one_line(name), in_one_line(words)) for name, words in lines]


def _signals(module: Module) -> tuple[tuple[str, Signal | None], ...]:
    return ("entering", module.entering), ("output", module.output), ("gradient", module.gradient)


def _all_units(module: Module) -> tuple[tuple[str, Units | None], ...]:
    return ("units", module.units), ("features", module.features)


def _signal(signal: Signal) -> str:
    if signal.count == 0:
        return "no finite number"
    parts = [
        f"rms {figure(signal.rms)}",
        f"mean {figure(signal.mean)}",
        f"from {figure(signal.least)} to {figure(signal.greatest)}",
        f"kurtosis {figure(signal.kurtosis)}",
    ]
    parts += [f"{signal.zeros:.1%} zeros"] if signal.zeros > 0 else []
    parts += [f"{signal.unreal:.2%} not finite"] if signal.unreal > 0 else []
    return ", ".join(parts)


def _units(units: Units) -> str:
    words = f"{units.count:,}, their middle rms {figure(units.median_rms)}"
    if units.dead:
        words += f", {units.dead:,} dead"
    if units.saturated:
        words += f", {units.saturated:,} saturated"
    if units.outliers:
        number, rms, _ = units.outliers[0]
        words += f", the largest is {number} with rms {figure(rms)}"
    return words


def _norm(norm: NormFigures) -> str:
    parts = [f"given a variance of {figure(norm.input_variance)}"]
    parts += [f"eps {norm.eps:g}"] if norm.eps is not None else []
    if norm.shares is not None:
        parts.append(f"statistics shared along axes {', '.join(map(str, norm.shares)) or 'of no size'}")
    parts += [f"{norm.values:,} values each"] if norm.values is not None else []
    if norm.gain_mean is not None:
        parts.append(f"gain {figure(norm.gain_mean)} ± {figure(norm.gain_spread)}")
    if norm.drift is not None:
        parts.append(f"memory off by {figure(norm.drift[0])} deviations and a factor of {figure(norm.drift[1])}")
    return ", ".join(parts)


def _attention(attention: Attention) -> str:
    parts = [many(attention.heads, "head"), f"up to {many(attention.keys, 'key')}"]
    if attention.entropy:
        parts.append(f"entropy {figure(min(attention.entropy))} to {figure(max(attention.entropy))}")
    parts += [f"scores spread by {figure(attention.spread)}"] if attention.spread is not None else []
    parts += [f"weight on later keys {figure(attention.future)}"] if attention.future is not None else []
    return ", ".join(parts)


def _join(join: Join) -> str:
    words = f"stream {figure(join.stream)} + branch {figure(join.branch)} = {figure(join.total)}"
    words += f", from {join.from_branch}" if join.from_branch else ""
    return words + (f", then {join.normalized}" if join.normalized else "")


def _parameter(parameter: Parameter) -> str:
    parts = [shape(parameter.shape), parameter.dtype, f"rms {figure(parameter.values.rms)}"]
    parts += [f"gradient {figure(parameter.gradient.rms)}"] if parameter.gradient is not None else []
    parts += [f"update {figure(parameter.update)} of it"] if parameter.update is not None else []
    parts += [f"tied to {parameter.same_as}"] if parameter.same_as is not None else []
    parts += [] if parameter.trained else ["not trained"]
    return ", ".join(parts)
