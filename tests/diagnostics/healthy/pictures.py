"""Networks on images: convolutions with norms, residual ones, a U-Net, vision transformers."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope.models.convnet import ConvNet, ConvNetConfig
from normscope.models.vit import ViT, ViTConfig
from tests.diagnostics.cases import Scene, running, well
from tests.diagnostics.networks import ResNet, UNet, convnet
from tests.diagnostics.tasks import classify, images, restore


@well((0, 1))
def convnet_with_batch_norm(seed: int) -> Scene:
    model: Any = convnet(channels=8 + 8 * seed)
    return running(model, classify(model, images))


@well((0, 1))
def convnet_trained(seed: int) -> Scene:
    model: Any = convnet(channels=8 + 8 * seed)
    return running(model, classify(model, images), trained=80, lr=3e-3)


@well((0, 1))
def convnet_trained_and_in_eval(seed: int) -> Scene:
    model: Any = convnet()
    running(model, classify(model, images), trained=80, lr=3e-3)
    model.eval()

    def run() -> None:
        with torch.no_grad():
            model(images(900 + seed, count=64)[0])

    return model, run


@well((0, 1))
def convnet_with_biases_before_its_norms(seed: int) -> Scene:
    """As torchvision's VGG has them: a note, no more."""
    model: Any = convnet(bias=True)
    return running(model, classify(model, images), trained=40 * seed)


@well((0, 1))
def resnet_at_the_start(seed: int) -> Scene:
    model: Any = ResNet(depth=3 + 3 * seed)
    return running(model, classify(model, images))


@well((0, 1))
def resnet_trained(seed: int) -> Scene:
    model: Any = ResNet(depth=3)
    return running(model, classify(model, images), trained=60, lr=3e-3)


@well((0, 1))
def resnet_whose_branches_start_at_zero(seed: int) -> Scene:
    """The last gain of each branch is zero (Goyal et al. 2017)."""
    model: Any = ResNet(depth=4)
    for block in model.blocks:
        nn.init.zeros_(block.norm2.weight)
    return running(model, classify(model, images), trained=30 * seed)


@well((0, 1))
def resnet_with_group_norm(seed: int) -> Scene:
    model: Any = ResNet(depth=3, norm=partial(nn.GroupNorm, 2))
    return running(model, classify(model, images), trained=40 * seed)


@well((0, 1))
def unet(seed: int) -> Scene:
    model: Any = UNet(8)
    return running(model, restore(model, images), trained=40 * seed)


@well((0, 1))
def convolutional_autoencoder_with_a_sigmoid(seed: int) -> Scene:
    """Pictures of zeros and ones: its sigmoid is at its ends when it has learnt."""
    model: Any = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
        nn.Sigmoid(),
    )

    def data(number: int) -> tuple[Tensor, Tensor]:
        pictures, labels = images(number)
        return (pictures > 1).float(), labels

    return running(model, restore(model, data), trained=100 * seed, lr=1e-2)


@well((0, 1))
def our_convnet(seed: int) -> Scene:
    model: Any = ConvNet(ConvNetConfig(image_size=8, channels=1, classes=4))
    return running(model, classify(model, images), trained=40 * seed)


@well((0, 1))
def our_vision_transformer(seed: int) -> Scene:
    model: Any = ViT(ViTConfig(image_size=8, patch=4, channels=1, classes=4, width=32, depth=3, heads=4))
    return running(model, classify(model, images), trained=40 * seed)


@well((0, 1))
def convnet_in_eval_on_one_picture(seed: int) -> Scene:
    model = convnet()
    running(model, classify(model, images), trained=60, lr=3e-3)
    model.eval()

    def run() -> None:
        with torch.no_grad():
            model(images(900 + seed, count=1)[0])

    return model, run
