"""The eps of norms: one that rounds to nothing, and one that outweighs the signal."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, called, percent, short
from normscope.diagnostics.record import ModuleRecord

HALF_OF_SMALLEST = {"float16": 2.0**-25}
"""Half of the smallest number of a type: what is less rounds to zero. The other types in use reach below 1e-38."""

OUTWEIGHED = 100.0
"""eps over the variance that it is added to. At 100 the output is a tenth of what it should be: the layer scales by a
constant and does not normalise. Embeddings of 0.02 with an eps of 1e-5 have 0.03."""

NOTED = 1.0
"""From here half of what is under the root is not the signal's. A norm after a branch that starts small may be here."""


def eps_sizes(view: View) -> list[Finding]:
    found = []
    for module in view.ran:
        norm = module.norm
        if norm is None:
            continue
        if norm.finite_for_zeros is False:
            found.append(_lost(module))
        elif norm.eps is not None and norm.input_variance > 0 and norm.eps >= NOTED * norm.input_variance:
            found.append(_outweighs(module, norm.eps, norm.input_variance))
    return found


def _lost(module: ModuleRecord) -> Finding:
    assert module.norm is not None
    eps, kind = module.norm.eps, module.dtype or "its type"
    rounds = eps is not None and 0 < eps < HALF_OF_SMALLEST.get(kind, 0.0)
    return Finding(
        "eps-too-small",
        "warning",
        module.name,
        f"the eps of {called(module.name)} is nothing in {kind}: zeros come out as NaN or Inf",
        {"eps": "unknown" if eps is None else eps, "type": kind},
        (
            f"The smallest number of {kind} is 6e-8, so {short(eps or 0.0)} is zero there, and "
            if rounds
            else "Without an eps under the root "
        )
        + "a row without variance is divided by zero. Padding, a dead layer or a constant image is such a row.",
        "set eps=1e-5, or compute the norm in float32: norm(x.float()).to(x.dtype)",
    )


def _outweighs(module: ModuleRecord, eps: float, variance: float) -> Finding:
    kept = (variance / (variance + eps)) ** 0.5
    return Finding(
        "eps-too-large",
        "warning" if eps >= OUTWEIGHED * variance else "note",
        module.name,
        f"the eps of {called(module.name)}, {short(eps)}, outweighs the variance of its input, {short(variance)}",
        {"eps": eps, "variance": variance, "eps / variance": eps / variance, "output": kept},
        f"The output is {percent(kept)} of the size it should have, and follows the size of the input: the layer does "
        f"not normalise.",
        f"set eps to {short(min(1e-5, variance / 1000))} or less, or make the input larger (embeddings that start at "
        f"0.02 or more)",
    )
