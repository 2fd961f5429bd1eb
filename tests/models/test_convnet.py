"""The convnet: shapes, any norm by its scope, and that it learns."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from normscope.blocks.norm.norm_spec import IMAGE_NORMS, TEXT_NORMS, NormSpec
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, NormscopeError, ScopeError, ShapeError
from normscope.models.convnet import ConvNet, ConvNetConfig, Convolution
from tests.models.images import bars, learns
from tests.pairs import chiefly
from tests.support import every_refusal, randn, scramble

NORMS: dict[str, NormSpec | None] = {
    **IMAGE_NORMS,
    "none": None,
    "each-pixel": NormSpec("n [c] h w", affine="c"),
    "rows": NormSpec("n c h [w]", affine="c"),
    "everything": NormSpec("[n c h w]", affine=None),
    "gain-for-each-pixel": NormSpec("n [c h w]", affine="c h w"),
    "groups-of-pixels": NormSpec("n (g [c]) h w", affine="(g c)", sizes={"g": 2}),
}
LEARNERS = {"batch", "instance", "power"}
every_norm = pytest.mark.parametrize("norm", NORMS)


def config(**options: Any) -> ConvNetConfig:
    return ConvNetConfig(**{"image_size": 8, "channels": 3, "classes": 5, "widths": (8, 12), **options})


@every_norm
def test_it_matches_its_formula(norm: str) -> None:
    net = ConvNet(config(norm=NORMS[norm])).double()
    scramble(net)
    images = randn(4, 3, 8, 8)
    found = copy.deepcopy(net)(images)  # of a twin, for some norms remember what they saw
    first, second = net.convolutions
    assert isinstance(first, Convolution)
    assert isinstance(second, Convolution)
    x = F.relu(net.norms[0](F.conv2d(images, first.weight, first.bias, padding=1)))
    x = F.relu(net.norms[1](F.conv2d(x, second.weight, second.bias, padding=1, stride=2)))
    assert x.shape == (4, 12, 4, 4)
    logits = x.mean((2, 3)) @ net.head.weight.T + net.head.bias
    torch.testing.assert_close(found, logits, rtol=1e-10, atol=1e-12)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("size", [5, 8, 9])
@pytest.mark.parametrize("widths", [(8,), (8, 4), (4, 8, 4, 8)], ids=str)
def test_images_of_any_size_and_stages_of_any_number(size: int, widths: tuple[int, ...]) -> None:
    for norm in (IMAGE_NORMS["layer"], NORMS["gain-for-each-pixel"]):
        net = ConvNet(config(image_size=size, widths=widths, norm=norm))
        assert net(torch.randn(2, 3, size, size)).shape == (2, 5)


def test_a_convolution_has_a_bias_only_without_a_norm() -> None:
    assert all(isinstance(c, Convolution) and c.bias is None for c in ConvNet(config()).convolutions)
    plain = ConvNet(config(norm=None)).convolutions
    assert all(isinstance(c, Convolution) and c.bias is not None and not c.bias.any() for c in plain)


def test_convolutions_have_he_initialization() -> None:
    weight = Convolution(64, 128, 3).weight
    tolerance = 5 / math.sqrt(2 * weight.numel())
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=tolerance)


def test_the_head_has_the_role_of_a_head() -> None:
    assert ConvNet(config()).head.role == "head"


def test_eval_mode_uses_running_statistics() -> None:
    net, images = ConvNet(config()), torch.randn(6, 3, 8, 8)
    net(images)
    net.eval()
    torch.testing.assert_close(net(images[:1]), net(images)[:1])


@pytest.mark.parametrize("norm", chiefly(sorted(LEARNERS), sorted(NORMS.keys() - LEARNERS)))
def test_it_learns(norm: str) -> None:
    torch.manual_seed(1)
    net = ConvNet(config(channels=1, classes=2, norm=NORMS[norm]))
    slow = norm in ("instance", "rows")  # they take out how much of a pattern there is, and leave only where
    assert learns(net, *bars(), lr=1e-2, steps=80 if slow else 40)


def ask(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return lambda: ConvNet(config())(torch.zeros(shape, dtype=dtype))


@every_refusal(
    ("rank", ShapeError, r"images of shape \(n, 3, 8, 8\), but got \(3, 8, 8\)", ask(3, 8, 8)),
    ("size", ShapeError, r"but got \(2, 3, 9, 9\)", ask(2, 3, 9, 9)),
    ("type", DtypeError, "torch.float64", ask(2, 3, 8, 8, dtype=torch.float64)),
    ("bytes", DtypeError, r"torch.uint8; for uint8 use images.float\(\) / 255$", ask(2, 3, 8, 8, dtype=torch.uint8)),
    ("list", ArgumentTypeError, "got list", lambda: ConvNet(config())([1.0])),
    ("no-stage", ConfigError, r"widths=\(\) must be a non-empty tuple", lambda: config(widths=())),
    ("one-number", ConfigError, "widths=16 must be a non-empty tuple", lambda: config(widths=16)),
    ("width", ConfigError, r"widths\[1\]=0 must be", lambda: config(widths=(8, 0))),
    ("image", ConfigError, "image_size=0 must be", lambda: config(image_size=0)),
    ("classes", ConfigError, "classes='5' must be", lambda: config(classes="5")),
    ("norm", ConfigError, "there is no norm 'rms-plain'; give one of layer", lambda: config(norm="rms-plain")),
    ("norm-of-text", ScopeError, "d", lambda: config(norm=TEXT_NORMS["batch"])),
    ("groups", ScopeError, "cannot be divided by g=4", lambda: config(widths=(8, 6), norm="group")),
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
