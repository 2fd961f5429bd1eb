"""How weights start: Glorot's variance, the cut, what the cut takes away, and a real draw."""

import math
import statistics

import torch
from torch import Tensor

from normscope.blocks.initialization import truncated_normal_std
from normscope.blocks.linear import Linear
from normscope.errors import ShapeError
from normscope.learning.checks import format_number
from normscope.learning.lesson import Lesson, step
from normscope.learning.torch_state import seeded

EXAMPLE = (768.0, 3072.0)
"""The first layer of GPT-2's MLP."""

LARGEST, LARGEST_SIDE = 2**24, 2**16
"""How many weights are drawn at most, and how many features there may be on a side."""


@step()
def forward_variance(d_in: int) -> float:
    """An output adds up d_in products, so its variance is d_in * Var(w) times the input's. For the signal to keep
    its size from layer to layer that factor has to be 1."""
    return 1 / d_in


@step()
def backward_variance(d_out: int) -> float:
    """The gradient goes the other way, through d_out products; for it to keep its size the variance would be this."""
    return 1 / d_out


@step({"the harmonic mean of both": lambda d_in, d_out: statistics.harmonic_mean([1 / d_in, 1 / d_out])})
def variance(d_in: int, d_out: int) -> float:
    """Both cannot be had unless d_in = d_out. Glorot's compromise is their harmonic mean."""
    return 2 / (d_in + d_out)


@step()
def std(variance: float) -> float:
    """Its root, the standard deviation."""
    return math.sqrt(variance)


@step()
def bound(std: float) -> float:
    """A normal distribution has no end, and a rare huge weight can push a neuron to where it never learns. So
    what falls beyond three standard deviations is drawn again."""
    return 3 * std


def integrated(cut: float) -> float:
    """The standard deviation of a cut normal distribution, by adding up a hundred thousand slices of it."""
    z = torch.linspace(-cut, cut, 100_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2)
    return math.sqrt(float(torch.trapezoid(z.square() * density, z) / torch.trapezoid(density, z)))


@step({"an integral in float64": lambda: integrated(3.0), "normscope's own formula": lambda: truncated_normal_std(3.0)})
def shrinkage() -> float:
    """Without its tails the distribution is a little narrower than it was meant to be, by this factor."""
    density = math.exp(-(3**2) / 2) / math.sqrt(2 * math.pi)
    inside = math.erf(3 / math.sqrt(2))
    return math.sqrt(1 - 2 * 3 * density / inside)


@step()
def std_after_cut(std: float, shrinkage: float) -> float:
    """So this is the standard deviation that the weights will have."""
    return std * shrinkage


@step()
def std_to_draw(std: float, shrinkage: float) -> float:
    """Whoever wants exactly Glorot's draws from a normal that is wider by as much; init="glorot-corrected" does."""
    return std / shrinkage


def measured_std(weight: Tensor) -> Tensor:
    """Now a real draw: weight is that of a new normscope.Linear(d_in, d_out). As a random sample it may miss by
    about 1 / sqrt(2 n) of itself."""
    return weight.std(correction=0)


@step()
def largest(weight: Tensor) -> Tensor:
    """And none of its weights is beyond the bound."""
    return weight.abs().max()


def measured_corrected_std(corrected_weight: Tensor) -> Tensor:
    """The same with init="glorot-corrected": cut as well, and as wide as Glorot's formula says."""
    return corrected_weight.std(correction=0)


def forward_factor(signal: Tensor, weight: Tensor) -> Tensor:
    """What one layer does to the variance of a signal (here {samples} rows of normal numbers): d_in * Var(w). After
    twenty such layers it would be this to the power of twenty."""
    return (signal @ weight.T).var() / signal.var()


def backward_factor(gradient: Tensor, weight: Tensor) -> Tensor:
    """And to the variance of a gradient (as many rows) on its way back: d_out * Var(w). The compromise lies
    between them."""
    return (gradient @ weight).var() / gradient.var()


def init(x: Tensor | None) -> Lesson:
    d_in, d_out = _sizes(torch.tensor(EXAMPLE) if x is None else x)
    count, samples = d_in * d_out, 256
    glorot = math.sqrt(2 / (d_in + d_out))
    # Six times the standard error of a sample: chance goes beyond it less than once in a hundred million times.
    of_std = 6 * glorot / math.sqrt(2 * count)
    of_factor = 6 * math.sqrt(2 / count + 2 / (samples * d_in) + 2 / (samples * d_out))
    return Lesson(
        title=f"The start of a linear layer, {d_in} to {d_out}: truncated Glorot",
        summary="""Weights start at random, but not at just any size: with weights too small signal and gradient
        die out from layer to layer, with weights too large they explode. Glorot's variance keeps both near their
        size, and a cut at three standard deviations keeps out the rare giant.""",
        given={
            "d_in": d_in,
            "d_out": d_out,
            "weight": seeded(lambda: Linear(d_in, d_out).weight.detach()),
            "corrected_weight": seeded(lambda: Linear(d_in, d_out, init="glorot-corrected").weight.detach()),
            "signal": seeded(lambda: torch.randn(samples, d_in), seed=1),
            "gradient": seeded(lambda: torch.randn(samples, d_out), seed=2),
            "samples": samples,
        },
        steps=[
            forward_variance,
            backward_variance,
            variance,
            std,
            bound,
            shrinkage,
            std_after_cut,
            std_to_draw,
            step({"std_after_cut": lambda std_after_cut: std_after_cut}, tolerance=of_std)(measured_std),
            largest,
            step({"std": lambda std: std}, tolerance=of_std)(measured_corrected_std),
            step(
                {"d_in * std_after_cut ** 2": lambda d_in, std_after_cut: d_in * std_after_cut**2},
                tolerance=of_factor * d_in * glorot**2,
            )(forward_factor),
            step(
                {"d_out * std_after_cut ** 2": lambda d_out, std_after_cut: d_out * std_after_cut**2},
                tolerance=of_factor * d_out * glorot**2,
            )(backward_factor),
        ],
        digits=6,
        hidden=frozenset({"weight", "corrected_weight", "signal", "gradient", "samples"}),
    )


def _sizes(x: Tensor) -> tuple[int, int]:
    """The two sizes of the layer."""
    fix = "fix: give d_in and d_out, for instance --input 768,3072"
    if x.dim() != 1 or x.numel() != 2:
        raise ShapeError(
            f"the start of a linear layer depends on two sizes, but got a tensor of shape {tuple(x.shape)}\n{fix}"
        )
    d_in, d_out = (float(size) for size in x)
    if not (d_in.is_integer() and d_out.is_integer() and min(d_in, d_out) >= 1):
        raise ShapeError(
            f"sizes are whole numbers above zero, but got {format_number(d_in)} and {format_number(d_out)}\n{fix}"
        )
    if d_in * d_out > LARGEST or max(d_in, d_out) > LARGEST_SIDE:
        raise ShapeError(f"{format_number(d_in)} by {format_number(d_out)} weights are too many to draw here\n{fix}")
    return int(d_in), int(d_out)
