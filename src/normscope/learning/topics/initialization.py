"""Initialization of a linear layer: Glorot variance, truncation and its correction."""

import math
import statistics

import torch
from torch import Tensor

from normscope.blocks.initialization import truncated_normal_std
from normscope.blocks.linear import Linear
from normscope.errors import ShapeError
from normscope.learning.inputs import format_number
from normscope.learning.lesson import Lesson, Step, Topic, seeded

MAX_WEIGHTS, MAX_FEATURES = 2**24, 2**16
"""Maximum number of weights, and of features on a side."""

SAMPLES = 256
"""Number of random signals and gradients."""


# Six standard errors: exceeded by chance less than once in a hundred million times.
def std_tolerance(d_in: int, d_out: int) -> float:
    return 6 * math.sqrt(2 / (d_in + d_out)) / math.sqrt(2 * d_in * d_out)


def gain_tolerance(d_in: int, d_out: int) -> float:
    return 6 * math.sqrt(2 / (d_in * d_out) + 2 / (SAMPLES * d_in) + 2 / (SAMPLES * d_out)) * 2 / (d_in + d_out)


@Step()
def forward_variance(d_in: int) -> float:
    """An output sums d_in products, so its variance is d_in * Var(w) times that of the input. To preserve the variance
    from layer to layer, this factor must be 1."""
    return 1 / d_in


@Step()
def backward_variance(d_out: int) -> float:
    """In the backward pass the gradient sums d_out products; this variance of the weights would preserve its
    variance."""
    return 1 / d_out


@Step({"the harmonic mean of both": lambda d_in, d_out: statistics.harmonic_mean([1 / d_in, 1 / d_out])})
def variance(d_in: int, d_out: int) -> float:
    """Both hold only if d_in = d_out. Glorot's compromise is the harmonic mean."""
    return 2 / (d_in + d_out)


@Step()
def std(variance: float) -> float:
    """Standard deviation: the square root."""
    return math.sqrt(variance)


@Step()
def bound(std: float) -> float:
    """A normal distribution is unbounded, and a rare huge weight can saturate a neuron. So values beyond three standard
    deviations are drawn again."""
    return 3 * std


def integrated_std(bound: float) -> float:
    """Standard deviation of a truncated normal distribution by numerical integration."""
    z = torch.linspace(-bound, bound, 100_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2)
    return math.sqrt(float(torch.trapezoid(z.square() * density, z) / torch.trapezoid(density, z)))


@Step(
    {
        "numerical integration in float64": lambda: integrated_std(3.0),
        "normscope's formula": lambda: truncated_normal_std(3.0),
    }
)
def shrinkage() -> float:
    """Truncation reduces the standard deviation by this factor."""
    density = math.exp(-(3**2) / 2) / math.sqrt(2 * math.pi)
    inside = math.erf(3 / math.sqrt(2))
    return math.sqrt(1 - 2 * 3 * density / inside)


@Step()
def std_after_truncation(std: float, shrinkage: float) -> float:
    """The standard deviation of the truncated weights."""
    return std * shrinkage


@Step()
def corrected_std(std: float, shrinkage: float) -> float:
    """For exactly Glorot's standard deviation, draw from a normal distribution that is wider by this factor;
    init="glorot-corrected" does."""
    return std / shrinkage


@Step({"std_after_truncation": lambda std_after_truncation: std_after_truncation}, tolerance=std_tolerance)
def measured_std(weight: Tensor) -> Tensor:
    """Measured on the weight of a new normscope.Linear(d_in, d_out); the relative standard error is about 1 / sqrt(2
    n)."""
    return weight.std(correction=0)


@Step()
def max_abs(weight: Tensor) -> Tensor:
    """No weight exceeds the bound."""
    return weight.abs().max()


@Step({"std": lambda std: std}, tolerance=std_tolerance)
def measured_corrected_std(corrected_weight: Tensor) -> Tensor:
    """The same with init="glorot-corrected": truncated, with exactly Glorot's standard deviation."""
    return corrected_weight.std(correction=0)


@Step(
    {"d_in * std_after_truncation ** 2": lambda d_in, std_after_truncation: d_in * std_after_truncation**2},
    tolerance=lambda d_in, d_out: d_in * gain_tolerance(d_in, d_out),
)
def forward_gain(signal: Tensor, weight: Tensor) -> Tensor:
    """Gain of one layer for the variance of a signal ({samples} rows of standard normal values): d_in * Var(w). After
    twenty layers it would be this to the power of twenty."""
    return (signal @ weight.T).var() / signal.var()


@Step(
    {"d_out * std_after_truncation ** 2": lambda d_out, std_after_truncation: d_out * std_after_truncation**2},
    tolerance=lambda d_in, d_out: d_out * gain_tolerance(d_in, d_out),
)
def backward_gain(gradient: Tensor, weight: Tensor) -> Tensor:
    """Gain for the variance of a gradient in the backward pass: d_out * Var(w). Glorot's compromise lies between the
    two."""
    return (gradient @ weight).var() / gradient.var()


def check_sizes(x: Tensor) -> tuple[int, int]:
    """Parse the two sizes of the layer."""
    fix = "fix: pass d_in and d_out, for example --input 768,3072"
    if x.dim() != 1 or x.numel() != 2:
        raise ShapeError(f"init expects two sizes, but got a tensor of shape {tuple(x.shape)}\n{fix}")
    d_in, d_out = (float(size) for size in x)
    if not (d_in.is_integer() and d_out.is_integer() and min(d_in, d_out) >= 1):
        raise ShapeError(
            f"sizes must be positive integers, but got {format_number(d_in)} and {format_number(d_out)}\n{fix}"
        )
    if d_in * d_out > MAX_WEIGHTS or max(d_in, d_out) > MAX_FEATURES:
        raise ShapeError(f"{format_number(d_in)} by {format_number(d_out)} is too large to draw here\n{fix}")
    return int(d_in), int(d_out)


@Topic(
    "initialization: Glorot variance and truncation",
    title="Initialization of a linear layer, {d_in} to {d_out}: truncated Glorot",
    example=(768.0, 3072.0),  # the up projection of GPT-2's MLP
    check=check_sizes,
    digits=6,
)
def init(x: tuple[int, int]) -> Lesson:
    """Initial weights are random, but their scale matters: if they are too small, signals and gradients vanish from
    layer to layer; if they are too large, they explode. Glorot's variance approximately preserves both, and truncation
    at three standard deviations avoids rare huge weights."""
    d_in, d_out = x
    hidden = {
        "weight": seeded(lambda: Linear(d_in, d_out).weight.detach()),
        "corrected_weight": seeded(lambda: Linear(d_in, d_out, init="glorot-corrected").weight.detach()),
        "signal": seeded(lambda: torch.randn(SAMPLES, d_in), seed=1),
        "gradient": seeded(lambda: torch.randn(SAMPLES, d_out), seed=2),
        "samples": SAMPLES,
    }
    return Lesson({"d_in": d_in, "d_out": d_out}, hidden)
