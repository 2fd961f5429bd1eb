"""A small convnet with a configurable norm."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.checks import check_images, check_type_of
from normscope.blocks.linear import Linear
from normscope.blocks.norm.norm_spec import IMAGE_NORMS, NormSpec, as_norm, build_norm
from normscope.blocks.torch_tools import BaseModule, is_fx_proxy
from normscope.checks import check_config, check_positive_int
from normscope.errors import ConfigError
from normscope.models.size import check_model_size


@dataclass(frozen=True, kw_only=True)
class ConvNetConfig:
    """Configuration of a `ConvNet`.

    Args:
        image_size: height and width of the images.
        channels: number of image channels.
        classes: number of classes.
        widths: number of channels of each stage; every stage but the first halves the image size.
        norm: norm after each convolution, over n c h w: a name, a scope or a `NormSpec`; None for no norms.
    """

    image_size: int
    channels: int = 3
    classes: int = 10
    widths: tuple[int, ...] = (16, 32, 64)
    norm: NormSpec | str | None = "batch"

    def __post_init__(self) -> None:
        check_positive_int(image_size=self.image_size, channels=self.channels, classes=self.classes)
        if not isinstance(self.widths, tuple) or not self.widths:
            raise ConfigError(f"widths={self.widths!r} must be a non-empty tuple, for instance (16, 32)")
        check_positive_int(**{f"widths[{i}]": width for i, width in enumerate(self.widths)})
        norm = as_norm(self.norm, IMAGE_NORMS)
        object.__setattr__(self, "norm", norm)
        if norm is not None:  # check that it fits every stage
            for _, width, _, size in self.stages():
                norm.build((None, width, size, size), device="meta")

    def parameter_count(self) -> int:
        """Return the number of parameters, without building the model and not counting norms."""
        convolutions = sum(9 * before * width for before, width, _, _ in self.stages())
        return convolutions + (self.widths[-1] + 1) * self.classes

    def stages(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (in_channels, out_channels, stride, output image size) of each stage."""
        before, size = self.channels, self.image_size
        for stage, width in enumerate(self.widths):
            stride = 1 if stage == 0 else 2
            size = -(-size // stride)
            yield before, width, stride, size
            before = width


class Convolution(nn.Conv2d):
    """nn.Conv2d with He initialization, N(0, 2/fan_in). He et al. 2015."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class ConvNet(BaseModule):
    r"""A small convnet: stages of convolution, norm and ReLU, then global average pooling and a linear head.

    Formula:
        x = relu(norm(conv(x))) for each stage;  logits = mean_hw(x) W_head^T + b

    Scope:
        Any over n c h w: `[n] c [h w]`, `n (g [c]) h w`, `n [c h w]`, ...

    Shapes:
        images: (n, channels, image_size, image_size). logits: (n, classes).

    Example:
        >>> import torch
        >>> net = ConvNet(ConvNetConfig(image_size=8, channels=1, norm="group"))
        >>> net(torch.randn(5, 1, 8, 8)).shape
        torch.Size([5, 10])

    Paper:
        LeCun et al. 1998, "Gradient-Based Learning Applied to Document Recognition".
    """

    def __init__(self, config: ConvNetConfig) -> None:
        super().__init__()
        check_config(config, ConvNetConfig, "a ConvNet")
        check_model_size(config.parameter_count(), depth=len(config.widths))
        self.config = config
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        norm = as_norm(config.norm, IMAGE_NORMS)
        for before, width, stride, size in config.stages():
            # No bias before a norm, which has its own.
            self.convolutions.append(Convolution(before, width, 3, stride, padding=1, bias=norm is None))
            self.norms.append(build_norm(norm, (None, width, size, size)))
        self.head = Linear(config.widths[-1], config.classes, role="head")

    def forward(self, images: Tensor) -> Tensor:
        if is_fx_proxy(images):
            return self._fx_call(images)
        check_images(images, self.config.channels, self.config.image_size)
        check_type_of(images, next(self.convolutions.parameters()), "the model")
        x = images
        for conv, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits
