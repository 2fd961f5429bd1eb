"""BatchNorm and InstanceNorm: every channel by itself, over the batch or in each sample."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import BatchNorm, InstanceNorm
from normscope.errors import ShapeError
from normscope.learning.checks import check_eps, check_rank, image_axis_names
from normscope.learning.lesson import Lesson, step
from normscope.learning.topics.layer_norm import References, count_along, standardization_steps

IMAGES = (
    (((0.1, 0.2), (0.3, 0.4)), ((1.0, 0.9), (1.2, -1.1)), ((1.1, 0.3), (-0.6, 0.2))),
    (((0.3, 0.8), (-0.2, -0.3)), ((-0.2, 2.1), (1.1, 0.2)), ((0.4, 0.7), (-2.1, 0.5))),
)
"""Two images of three channels, each two by two pixels."""

BATCH = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
INSTANCE = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
"""torch's layers by the number of dimensions; for more it has none."""


@step({"normscope.BatchNorm's buffer": lambda x, eps: _trained(x, eps).get_buffer("running_mean")}, axes="c")
def running_mean(mean: Tensor) -> Tensor:
    """What the layer remembers for later, when it has to work on a single sample: a tenth of this batch's mean,
    and nine tenths of what it knew before, which in a new layer is 0."""
    return 0.9 * 0 + 0.1 * mean.flatten()


@step({"normscope.BatchNorm's buffer": lambda x, eps: _trained(x, eps).get_buffer("running_var")}, axes="c")
def running_var(variance: Tensor, count: int) -> Tensor:
    """The same for the variance, which starts at 1. Here, and only here, it is the unbiased one: divided by one
    less than {count}."""
    unbiased = variance.flatten() * count / (count - 1)
    return 0.9 * 1 + 0.1 * unbiased


@step({"torch.nn.functional.instance_norm": lambda x, eps: F.instance_norm(x[:1], eps=eps)})
def alone(x: Tensor, over: tuple[int, ...], eps: float) -> Tensor:
    """What if the batch were one sample? There is nobody left to share a mean with but the sample's own positions:
    BatchNorm of one sample is InstanceNorm."""
    one = x[:1]
    var, mean = torch.var_mean(one, over, correction=0, keepdim=True)
    return (one - mean) / torch.sqrt(var + eps)


def batchnorm(x: Tensor | None, eps: float = 1e-5) -> Lesson:
    x = torch.tensor(IMAGES) if x is None else check_rank(x, "BatchNorm", 2, example="[[1, 2], [3, 4]]")
    over = (0, *range(2, x.dim()))
    steps = standardization_steps(
        {"torch.nn.functional.batch_norm": lambda x, eps: F.batch_norm(x, None, None, training=True, eps=eps)},
        {
            **_layer_of_torch(BATCH.get(x.dim())),
            "normscope.BatchNorm": lambda x, eps: BatchNorm(x.shape[1], eps)(x),
        },
    )
    has_positions = count_along(x, over[1:]) > 1
    return Lesson(
        title="BatchNorm, over [n] c [...]",
        summary="""Every channel is centred and scaled by its mean and variance over all the samples of the batch
        and all their positions. It asks what a channel has in common across the batch; so it needs a batch that
        is large enough to tell, and a memory for the day when there is only one sample.""",
        given=_given(x, over, eps, "BatchNorm"),
        steps=[*steps, running_mean, running_var, *([alone] if has_positions else [])],
        axes=image_axis_names(x),
        digits=6,
    )


def instancenorm(x: Tensor | None, eps: float = 1e-5) -> Lesson:
    x = torch.tensor(IMAGES) if x is None else check_rank(x, "InstanceNorm", least=3)
    over = tuple(range(2, x.dim()))
    steps = standardization_steps(
        {"torch.nn.functional.instance_norm": lambda x, eps: F.instance_norm(x, eps=eps)},
        {
            **_layer_of_torch(INSTANCE.get(x.dim())),
            "normscope.InstanceNorm": lambda x, eps: InstanceNorm(x.shape[1], eps, affine=True)(x),
        },
    )
    return Lesson(
        title="InstanceNorm, over n c [...]",
        summary="""Every channel of every sample is centred and scaled by itself, over its positions alone. What
        is lost is brightness and contrast, the style of a picture; what is left is its shape. (In torch gain and
        bias are off unless affine=True asks for them.)""",
        given=_given(x, over, eps, "InstanceNorm"),
        steps=steps,
        axes=image_axis_names(x),
        digits=6,
        hidden=frozenset({"count"}),
    )


def _given(x: Tensor, over: tuple[int, ...], eps: float, layer: str) -> dict[str, object]:
    check_eps(eps)
    count = count_along(x, over)
    if count < 2:
        raise ShapeError(
            f"{layer} needs more than one number for each mean, but a tensor of shape {tuple(x.shape)} has one, whose "
            f'variance is 0\nfix: give more samples or positions, for instance --input "{_more(x)}"'
        )
    beside_channels = (1, x.shape[1], *(1,) * (x.dim() - 2))
    return {
        "x": x,
        "weight": torch.ones(beside_channels),
        "bias": torch.zeros(beside_channels),
        "eps": eps,
        "over": over,
        "count": count,
    }


def _more(x: Tensor) -> str:
    return "[[1, 2], [3, 4]]" if x.dim() == 2 else "[[[1, 2], [3, 4]]]"


def _layer_of_torch(layer: type[nn.Module] | None) -> References:
    if layer is None:
        return {}
    return {f"torch.nn.{layer.__name__}": lambda x, eps: layer(x.shape[1], eps, affine=True)(x)}


def _trained(x: Tensor, eps: float) -> BatchNorm:
    """A new layer that has seen this batch."""
    layer = BatchNorm(x.shape[1], eps)
    layer(x)
    return layer
