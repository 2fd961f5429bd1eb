"""A small vision transformer."""

from dataclasses import dataclass

from torch import Tensor, nn

from normscope.blocks.block import Block, BlockConfig, final_norm
from normscope.blocks.checks import check_images
from normscope.blocks.linear import Embedding, Linear
from normscope.blocks.norm.norm_spec import NormSpec
from normscope.blocks.torch_tools import BaseModule, is_fx_proxy
from normscope.checks import check_config, check_positive_int
from normscope.errors import ConfigError
from normscope.models.size import check_model_size, count_block_parameters


@dataclass(frozen=True, kw_only=True)
class ViTConfig(BlockConfig):
    """Configuration of a `ViT`.

    Args:
        image_size: height and width of the images.
        patch: side length of a patch; 1 makes every pixel a token.
        channels: number of image channels.
        classes: number of classes.

    The other fields are those of `BlockConfig`.
    """

    image_size: int
    patch: int
    channels: int = 3
    classes: int = 10
    causal: bool = False
    norm: NormSpec | str | None = "layer"
    activation: str = "gelu"
    bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {"image_size": self.image_size, "patch": self.patch, "channels": self.channels, "classes": self.classes}
        check_positive_int(**sizes)
        if self.image_size % self.patch:
            raise ConfigError(f"patch={self.patch} does not divide image_size={self.image_size}")

    def parameter_count(self) -> int:
        """Return the number of parameters, without building the model."""
        patches = (self.image_size // self.patch) ** 2
        embedding, head = (self.channels * self.patch**2 + 1) * self.width, (self.width + 1) * self.classes
        return count_block_parameters(self) + embedding + patches * self.width + head


class ViT(BaseModule):
    r"""A small vision transformer with mean pooling over patches.

    Formula:
        x = patches W + position;  x = block(x) for each block;  logits = mean_s(norm(x)) W_head^T

    Scope:
        Any over b s d, where s is the patch index.

    Shapes:
        images: (n, channels, image_size, image_size). logits: (n, classes).

    Example:
        >>> import torch
        >>> vit = ViT(ViTConfig(image_size=8, patch=2, channels=1, width=32, heads=4, depth=2))
        >>> vit(torch.randn(5, 1, 8, 8)).shape
        torch.Size([5, 10])
        >>> ViT(ViTConfig(image_size=8, patch=1, channels=1, width=32, heads=4)).position.num_embeddings  # pixels
        64

    Paper:
        Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale".
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        check_config(config, ViTConfig, "a ViT")
        check_model_size(config.parameter_count(), depth=config.depth)
        self.config = config
        patches = (config.image_size // config.patch) ** 2
        self.embedding = Linear(config.channels * config.patch**2, config.width, init=config.init)
        self.position = Embedding(patches, config.width, init=config.init, role="position")
        self.blocks = nn.ModuleList(Block(config, layer=i) for i in range(config.depth))
        self.final_norm = final_norm(config)
        self.head = Linear(config.width, config.classes, init=config.init, role="head")

    def forward(self, images: Tensor) -> Tensor:
        if is_fx_proxy(images):
            return self._fx_call(images)
        x = self.embedding(self.patches(images)) + self.position.weight  # n s d
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.final_norm(x).mean(dim=1))
        return logits

    def patches(self, images: Tensor) -> Tensor:
        """Split images (n, c, h, w) into patches (n, patches, c * patch * patch), in row-major order."""
        c, size, p = self.config.channels, self.config.image_size, self.config.patch
        check_images(images, c, size)
        grid = images.reshape(images.shape[0], c, size // p, p, size // p, p)
        return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
