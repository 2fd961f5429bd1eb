"""The eps of norms: too small for the dtype, or larger than the variance of the input."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView, module_ref
from normscope.diagnostics.record import ModuleRecord
from normscope.render.formatting import format_percent, format_short

HALF_OF_SMALLEST = {"float16": 2.0**-25}
"""Half of the smallest positive number of a dtype: anything below rounds to zero. Other dtypes reach below 1e-38."""

WARNING_RATIO = 100.0
"""eps over the variance of the input. At 100 the output is a tenth of what it should be: the layer scales by a constant
and does not normalize. Embeddings of std 0.02 with an eps of 1e-5 have 0.03."""

NOTE_RATIO = 1.0
"""From here on, half of what is under the root is eps. A norm after a branch with a small initialization may be
here."""


def check_norm_eps(view: RecordView) -> list[Finding]:
    found = []
    for module in view.ran:
        norm = module.norm
        if norm is None:
            continue
        if norm.finite_for_zeros is False:
            found.append(_too_small(module))
        elif norm.eps is not None and norm.input_variance > 0 and norm.eps >= NOTE_RATIO * norm.input_variance:
            found.append(_too_large(module, norm.eps, norm.input_variance))
    return found


def _too_small(module: ModuleRecord) -> Finding:
    assert module.norm is not None
    eps, dtype = module.norm.eps, module.dtype or "its dtype"
    underflows = eps is not None and 0 < eps < HALF_OF_SMALLEST.get(dtype, 0.0)
    return Finding(
        "eps-too-small",
        "warning",
        module.name,
        f"the eps of {module_ref(module.name)} has no effect in {dtype}: an all-zero input gives NaN or Inf",
        {"eps": "unknown" if eps is None else eps, "dtype": dtype},
        (
            f"The smallest positive {dtype} is 6e-8, so {format_short(eps or 0.0)} rounds to zero, and "
            if underflows
            else "Without an eps, "
        )
        + "an input with zero variance, such as padding or the output of a dead layer, is divided by zero.",
        "set eps=1e-5, or compute the norm in float32: norm(x.float()).to(x.dtype)",
    )


def _too_large(module: ModuleRecord, eps: float, variance: float) -> Finding:
    scale = (variance / (variance + eps)) ** 0.5
    return Finding(
        "eps-too-large",
        "warning" if eps >= WARNING_RATIO * variance else "note",
        module.name,
        f"the eps of {module_ref(module.name)} ({format_short(eps)}) exceeds the variance of its input "
        f"({format_short(variance)})",
        {"eps": eps, "variance": variance, "eps / variance": eps / variance, "output scale": scale},
        f"The output has {format_percent(scale)} of its intended scale and follows that of the input: the layer does "
        "not normalize.",
        f"set eps to {format_short(min(1e-5, variance / 1000))} or less, or increase the scale of the input (for "
        f"embeddings, an initial std of 0.02 or more)",
    )
