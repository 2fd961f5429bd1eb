"""Image models: convnets, ResNets, a U-Net, an autoencoder, a vision transformer."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope.models.convnet import ConvNet, ConvNetConfig
from normscope.models.vit import ViT, ViTConfig
from tests.diagnostics.cases import Setup, healthy, two_training_steps
from tests.diagnostics.networks import ResNet, UNet, convnet
from tests.diagnostics.tasks import classify, images, reconstruct


@healthy((0, 1))
def convnet_at_init(seed: int) -> Setup:
    model: Any = convnet(channels=8 + 8 * seed)
    return two_training_steps(model, classify(model, images))


@healthy((0, 1), quick=False)
def convnet_trained(seed: int) -> Setup:
    model: Any = convnet(channels=8 + 8 * seed)
    return two_training_steps(model, classify(model, images), after=80, lr=3e-3)


@healthy((0, 1))
def convnet_trained_eval(seed: int) -> Setup:
    model: Any = convnet()
    two_training_steps(model, classify(model, images), after=80, lr=3e-3)
    model.eval()

    def run() -> None:
        with torch.no_grad():
            model(images(900 + seed, count=64)[0])

    return model, run


@healthy((0, 1))
def convnet_with_biases_before_norms(seed: int) -> Setup:
    """As in torchvision's VGG: only a note."""
    model: Any = convnet(bias=True)
    return two_training_steps(model, classify(model, images), after=40 * seed)


@healthy((0, 1))
def resnet_at_init(seed: int) -> Setup:
    model: Any = ResNet(depth=3 + 3 * seed)
    return two_training_steps(model, classify(model, images))


@healthy((0, 1), quick=False)
def resnet_trained(seed: int) -> Setup:
    model: Any = ResNet(depth=3)
    return two_training_steps(model, classify(model, images), after=60, lr=3e-3)


@healthy((0, 1), quick=False)
def resnet_zero_init(seed: int) -> Setup:
    """The last norm weight of each branch starts at zero (Goyal et al. 2017)."""
    model: Any = ResNet(depth=4)
    for block in model.blocks:
        nn.init.zeros_(block.norm2.weight)
    return two_training_steps(model, classify(model, images), after=30 * seed)


@healthy((0, 1))
def resnet_with_groupnorm(seed: int) -> Setup:
    model: Any = ResNet(depth=3, norm=partial(nn.GroupNorm, 2))
    return two_training_steps(model, classify(model, images), after=40 * seed)


@healthy((0, 1))
def unet(seed: int) -> Setup:
    model: Any = UNet(8)
    return two_training_steps(model, reconstruct(model, images), after=40 * seed)


@healthy((0, 1))
def conv_autoencoder_with_sigmoid(seed: int) -> Setup:
    """Binary images: the sigmoid saturates once the model is trained."""
    model: Any = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
        nn.Sigmoid(),
    )

    def data(number: int) -> tuple[Tensor, Tensor]:
        x, labels = images(number)
        return (x > 1).float(), labels

    return two_training_steps(model, reconstruct(model, data), after=100 * seed, lr=1e-2)


@healthy((0, 1))
def normscope_convnet(seed: int) -> Setup:
    model: Any = ConvNet(ConvNetConfig(image_size=8, channels=1, classes=4))
    return two_training_steps(model, classify(model, images), after=40 * seed)


@healthy((0, 1))
def normscope_vit(seed: int) -> Setup:
    model: Any = ViT(ViTConfig(image_size=8, patch=4, channels=1, classes=4, width=32, depth=3, heads=4))
    return two_training_steps(model, classify(model, images), after=40 * seed)


@healthy((0, 1))
def convnet_eval_on_one_image(seed: int) -> Setup:
    model = convnet()
    two_training_steps(model, classify(model, images), after=60, lr=3e-3)
    model.eval()

    def run() -> None:
        with torch.no_grad():
            model(images(900 + seed, count=1)[0])

    return model, run
