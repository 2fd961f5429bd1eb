"""What is measured of the values of a parameter, all at once: the whole of a sharded one exists only for a moment."""

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope.diagnostics.collect.tensors import sample_elements
from normscope.ops.moments import Moments, compute_moments
from normscope.tracing.module_kinds import is_linear
from normscope.tracing.sharded import original_class

_SAMPLE = 1 << 14
"""Elements of a parameter that are copied, to measure how a step changes it."""


@dataclass(frozen=True)
class ParameterValues:
    """Statistics of all values of a parameter.

    Args:
        moments: their moments.
        content_hash, identical_rows: as in `record.ParameterRecord`.
    """

    moments: Moments
    content_hash: str | None
    identical_rows: bool


def measure_values(parameter: Tensor) -> ParameterValues:
    moments = compute_moments(parameter)
    if not moments.minimum < moments.maximum:
        return ParameterValues(moments, None, False)
    return ParameterValues(moments, _content_hash(parameter), _has_identical_rows(parameter))


def sample_values(parameter: Tensor) -> Tensor:
    """Return a copy of some elements of a parameter, always the same ones."""
    return sample_elements(parameter, _SAMPLE).clone()


def predicted_gain(module: nn.Module, weight: Tensor, values: Moments) -> float | None:
    """Return sqrt(fan_in * mean square) for the weight of a linear layer; None for other modules."""
    if isinstance(module, torch.jit.ScriptModule) or not is_linear(module) or values.count == 0:
        return None
    if isinstance(module, nn.modules.conv._ConvTransposeNd):  # (in, out, ...); one in `stride` positions contributes
        fan_in = weight.numel() / weight.shape[1] / module.groups / math.prod(module.stride)
    elif original_class(module).__name__ == "Conv1D":  # Hugging Face's: (in, out)
        fan_in = weight.shape[0]
    else:
        fan_in = weight.numel() / weight.shape[0]
    return float((fan_in * values.rms**2) ** 0.5)


def _content_hash(parameter: Tensor) -> str:
    data = sample_values(parameter).double().cpu().numpy().tobytes()
    return hashlib.blake2b(data + repr(tuple(parameter.shape)).encode(), digest_size=12).hexdigest()


def _has_identical_rows(parameter: Tensor) -> bool:
    if parameter.dim() < 2 or parameter.shape[0] < 2:
        return False
    rows = parameter.detach().flatten(1)
    return bool(torch.equal(rows[0], rows[1])) and bool((rows[1:] == rows[:1]).all())
