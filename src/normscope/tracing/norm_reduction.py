"""Detect the axes that a norm reduces over by running it on probe inputs."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope.tracing.module_trials import call_forward, copy_module

_SMALL = 4
_PERTURBATION, _SMALLEST_RESPONSE = 100.0, 0.05
"""How much one value is changed, and the smallest change of the output that is not rounding."""


@dataclass(frozen=True)
class NormReduction:
    """The response of a norm to a perturbed value, and to added constants.

    Args:
        reduced_axes: the axes along which other outputs changed.
        is_centered: whether the output ignores a constant added everywhere.
        removes_bias: whether the output ignores a constant added to each channel.
        finite_for_zeros: whether the output for zeros is finite.
        is_constant: whether no output changed, not even at the perturbed position: each value is its own mean.
    """

    reduced_axes: tuple[int, ...]
    is_centered: bool
    removes_bias: bool
    finite_for_zeros: bool
    is_constant: bool = False


def probe_reduction(module: nn.Module, x: Tensor, channels: int) -> NormReduction | None:
    """Try a copy of the norm on a small synthetic input like x. The module and the RNG states are not touched.

    Returns None if the norm cannot be tried.
    """
    if isinstance(module, nn.SyncBatchNorm) or getattr(module, "sync", False):
        return None  # it would wait for other processes
    axis = channels % x.dim() if x.dim() else 0
    small = tuple(size if i == axis else min(size, _SMALL) for i, size in enumerate(x.shape))
    for shape in (small, (min(_SMALL, x.shape[0]), *x.shape[1:])) if x.dim() else ():
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
                return _probe(module, _synthetic_input(shape, x), channels)
        except Exception:
            continue
    return None


def _synthetic_input(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return values between -1 and 1 that look random, without using an RNG."""
    positions = torch.arange(math.prod(shape), dtype=torch.float64, device="cpu")
    return torch.sin(positions * 12.9898 + 0.5 * torch.sin(positions * 78.233)).reshape(shape).to(like)


def _probe(module: nn.Module, x: Tensor, channels: int) -> NormReduction:
    template = copy_module(module)
    for parameter in template.parameters():
        parameter[parameter == 0] = 1.0  # a zero weight would hide everything

    def run(y: Tensor) -> Tensor:
        return call_forward(copy_module(template), y)  # a new copy: a call may update running statistics

    plain = run(x)
    size = plain.float().abs().amax()
    first = (0,) * x.dim()
    moved = x.clone()
    moved[first] += _PERTURBATION
    change = (run(moved).float() - plain.float()).abs()
    changed = change > 1e-4 * size
    reduced_axes = []
    for axis in range(x.dim()):
        along = changed[tuple(slice(None) if i == axis else 0 for i in range(x.dim()))]
        if bool(along[1:].any()):
            reduced_axes.append(axis)
    is_centered = _is_equal(run(x + 0.5), plain)
    rest = [axis for axis in range(x.dim()) if axis not in reduced_axes]
    # The channels of a norm over the batch lie along the one axis that it does not reduce over.
    axis = rest[0] if 0 in reduced_axes and len(rest) == 1 else channels % x.dim()
    steps = torch.linspace(-0.5, 0.5, x.shape[axis]).to(x).reshape([-1 if i == axis else 1 for i in range(x.dim())])
    finite_for_zeros = bool(torch.isfinite(run(torch.zeros_like(x))).all())
    is_constant = not reduced_axes and bool(change.amax() < _SMALLEST_RESPONSE)
    removes_bias = _is_equal(run(x + steps), plain)
    return NormReduction(tuple(reduced_axes), is_centered, removes_bias, finite_for_zeros, is_constant)


def _is_equal(y: Tensor, z: Tensor) -> bool:
    # Adding 0.5 changes the output of a norm that is not centered by much; half precision and eps change it by little.
    return bool((y.float() - z.float()).abs().amax() < 0.05 * z.float().abs().amax())
