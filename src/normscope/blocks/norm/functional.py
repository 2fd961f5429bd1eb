"""Functional norms, without a module."""

from torch import Tensor

from normscope.blocks.checks import check_same_device
from normscope.blocks.norm import checks
from normscope.errors import ConfigError, DtypeError, ShapeError
from normscope.ops.norm import normalize as norm
from normscope.ops.norm import reference
from normscope.ops.norm.reference import Affine
from normscope.ops.norm.statistic import Statistic, StatisticName
from normscope.scope import Axes, Plan, Scope

# Parsed once: torch.compile cannot trace the parser.
_LAST_AXIS, _ITS_GAIN = Scope.parse("... [d]"), Axes.parse("d")


def normalize(
    x: Tensor,
    scope: str | Scope,
    /,
    *,
    statistic: StatisticName | Statistic = "standardize",
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    affine: str | Axes | None = None,
    eps: float | None = 1e-5,
    mask: Tensor | None = None,
    **sizes: int,
) -> Tensor:
    """Normalize over a scope.

    Args:
        x: the input.
        scope: the axes of x; those in brackets share statistics.
        statistic: "standardize" to subtract the mean and divide by the standard deviation, "rms" to divide by the root
            mean square.
        weight, bias: the affine parameters, over the axes that `affine` names.
        eps: value added to the second moment; None for the machine epsilon.
        mask: True at real positions. Padding is ignored in the statistics and zero in the result.
        sizes: sizes of axes that the shape of x does not determine, for instance `g=8`.

    >>> import torch
    >>> x = torch.randn(2, 6, 4, 4)
    >>> y = normalize(x, "n (g [c]) h w", g=3)
    >>> bool(y.reshape(2, 3, 2, 4, 4).mean(2).abs().max() < 1e-6)
    True
    """
    reference.check_floating(x)
    checks.check_eps(eps)
    scope = Scope.parse(scope)
    checks.check_names(scope)
    plan = scope.bind(x.shape, **sizes)
    checks.check_mask_axes(mask, x, scope, plan, () if affine is None else Axes.parse(affine).names)
    eps = reference.default_eps(x) if eps is None else eps
    owned = _check_affine(x, scope, plan, affine, weight, bias)
    return norm.normalize(x, plan, statistic=Statistic.named(statistic), eps=eps, affine=owned, mask=mask)


def _check_affine(
    x: Tensor, scope: Scope, plan: Plan, affine: str | Axes | None, weight: Tensor | None, bias: Tensor | None
) -> Affine:
    """Check the shapes of weight and bias, and return them with the shape in which they broadcast."""
    if affine is None:
        if weight is not None or bias is not None:
            raise ConfigError("a weight or bias was given, but not its axes; name them, for instance affine='c'")
        return Affine()
    axes = Axes.parse(affine)
    wanted = axes.shape(scope, dict(zip(plan.names, plan.split_shape, strict=True)))
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        if not isinstance(parameter, Tensor):
            raise DtypeError(f"the {name} must be a tensor, but got {type(parameter).__name__}")
        if not parameter.is_floating_point():
            raise DtypeError(f"the {name} must be of floats, but got {parameter.dtype}; convert it with .float()")
        reference.check_dense(parameter, f"the {name} of a norm")
        check_same_device(f"the {name}", parameter.device, x.device)
        if tuple(parameter.shape) != wanted:
            raise ShapeError(
                f"the {name} has shape {tuple(parameter.shape)}, but the axes {axes.text!r} of a tensor of shape "
                f"{plan.shape} need {wanted}"
            )
    return Affine(weight, bias, plan.broadcast_shape(axes.names))


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Apply LayerNorm over the last axis.

    >>> import torch
    >>> layer_norm(torch.tensor([1.0, 2.0, 3.0]))
    tensor([-1.2247,  0.0000,  1.2247])
    """
    return normalize(x, _LAST_AXIS, weight=weight, bias=bias, affine=_ITS_GAIN, eps=eps)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Apply RMSNorm over the last axis, by default without a weight (as in nanochat).

    >>> import torch
    >>> rms_norm(torch.tensor([3.0, -4.0, 0.0]))
    tensor([ 1.0392, -1.3856,  0.0000])
    """
    return normalize(x, _LAST_AXIS, statistic="rms", weight=weight, affine=_ITS_GAIN, eps=eps)
