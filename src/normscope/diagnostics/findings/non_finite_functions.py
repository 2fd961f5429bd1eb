"""How functions produce NaN and Inf, and what to do."""

from normscope.diagnostics.stats.non_finite import NonFiniteOrigin
from normscope.render.formatting import format_short

_LOGS = frozenset({"log", "log2", "log10", "log1p", "xlogy", "logit", "binary_cross_entropy"})

_QUOTIENTS = frozenset({"div", "rdiv", "reciprocal", "normalize", "cosine_similarity", "floor_divide"})

_ADVICE: tuple[tuple[frozenset[str], str, str, str], ...] = (
    (
        _LOGS,
        "Its argument goes down to {low}; the logarithm of zero is -inf, and of a negative number NaN.",
        "Its argument comes so close to zero that 1 / x overflows.",
        "compute it from logits (log_softmax, logsigmoid, binary_cross_entropy_with_logits), or clamp the argument: "
        "torch.log(x.clamp_min(1e-6))",
    ),
    (
        frozenset({"sqrt", "rsqrt", "norm", "vector_norm", "std", "var", "pow", "rpow", "cdist", "hypot"}),
        "Its argument goes down to {low}: a root or power of it is not finite (std of a single value is NaN too).",
        "Its argument is zero somewhere, where the slope of a root is infinite.",
        "add an eps under the root: torch.sqrt(x + 1e-8); for std, use correction=0 or a larger batch",
    ),
    (
        _QUOTIENTS,
        "It divides by values down to {near}.",
        "It divides by values so close to zero that the square of the quotient overflows.",
        "add an eps to the denominator or limit it: x / y.clamp_min(1e-6); check for empty masks and constant columns",
    ),
    (
        frozenset({"exp", "expm1", "exp2", "sinh", "cosh", "logaddexp"}),
        "Its argument is too large: exp(89) overflows float32.",
        "Its result is too large.",
        "limit the argument, x.clamp(max=20), predict its logarithm, or use softplus, logsumexp or log_softmax",
    ),
    (
        frozenset({"acos", "asin", "arccos", "arcsin", "acosh", "atanh", "arctanh", "erfinv"}),
        "Its argument is outside of the interval where it is defined, perhaps by rounding.",
        "Its argument is at the end of its interval, -1 or 1, where the slope is infinite.",
        "clamp the argument a little inside: x.clamp(-1 + 1e-6, 1 - 1e-6)",
    ),
    (
        frozenset({"cross_entropy", "nll_loss", "mean", "masked_mean", "nanmean"}),
        "It is a mean over no elements: all labels are ignored, or the mask or batch is empty.",
        "It is a mean over no elements.",
        "skip batches without targets, or divide the sum by max(count, 1)",
    ),
)
"""Functions, how they become non-finite forward and backward, and what to do."""


def advice(origin: NonFiniteOrigin, is_forward: bool) -> tuple[str, str]:
    """How the function came to its result, and what to do."""
    if is_forward and origin.overflow and origin.dtype == "float16" and origin.function not in _LOGS | _QUOTIENTS:
        largest = "" if origin.largest is None else f" from arguments up to {format_short(origin.largest)}"
        how = f"It overflows float16, whose largest number is 65504{largest}."
        return how, "compute this part in float32 (x.float()) or bfloat16, and use torch.autocast instead of half()"
    if origin.kind == "masked":
        return (
            "In some row all of its arguments are masked with -inf, so that nothing is left to normalize.",
            "keep at least one key visible per row of the mask, or use a large negative number instead of -inf",
        )
    for names, forward, backward, fix in _ADVICE:
        if origin.function in names:
            how = forward if is_forward else backward
            return how.format(low=_or_unknown(origin.smallest), near=_or_unknown(origin.smallest_magnitude)), fix
    if is_forward:
        return "Its arguments were finite.", "check its arguments for zeros and huge values; clamp them or add an eps"
    fix = "keep the arguments away from where the slope is infinite: clamp them, or add an eps"
    return "Its slope is infinite at some of its arguments.", fix


def _or_unknown(value: float | None) -> str:
    return "unknown values" if value is None else format_short(value)
