"""The vision transformer: patches compared with loops, any norm, and that it learns."""

from typing import Any

import pytest
import torch

from normscope.blocks.norm.norm_spec import TEXT_NORMS, NormSpec
from normscope.blocks.residual import WIRINGS
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, FutureLeakError, NormscopeError, ShapeError
from normscope.models.vit import ViT, ViTConfig
from tests.models.images import bars, learns
from tests.pairs import chiefly, every_value
from tests.support import every_refusal, randn, scramble

NORMS: dict[str, NormSpec | None] = {
    **TEXT_NORMS,
    "none": None,
    "everything": NormSpec("[b s d]", affine=None),
    "patches-and-features": NormSpec("b [s d]", affine="d"),
}


def config(**options: Any) -> ViTConfig:
    sizes = {"image_size": 8, "patch": 2, "channels": 3, "width": 16, "heads": 4, "depth": 2, "classes": 5}
    return ViTConfig(**{**sizes, **options})


def made(**options: Any) -> ViT:
    vit = ViT(config(**options)).double()
    scramble(vit)
    return vit


@pytest.mark.parametrize("patch", [1, 2, 4, 8])
def test_patches_are_in_row_major_order(patch: int) -> None:
    images, vit = randn(2, 3, 8, 8), made(patch=patch)
    across = 8 // patch
    found = vit.patches(images)
    assert found.shape == (2, across**2, 3 * patch**2)
    for n in range(2):
        for row in range(across):
            for column in range(across):
                wanted = [
                    images[n, c, row * patch + y, column * patch + x]
                    for c in range(3)
                    for y in range(patch)
                    for x in range(patch)
                ]
                assert torch.equal(found[n, row * across + column], torch.stack(wanted))


def test_a_patch_of_one_is_a_pixel() -> None:
    images, vit = randn(2, 3, 8, 8), made(patch=1)
    assert vit.position.num_embeddings == 64
    assert torch.equal(vit.patches(images), images.flatten(2).transpose(1, 2))


def test_a_patch_is_embedded_linearly() -> None:
    """Exchange two pixels of every patch, and the weights that read them, and nothing has changed."""
    images, vit = randn(2, 1, 8, 8), made(channels=1)
    logits = vit(images)
    turned = images.clone()
    turned[..., 0::2, 0::2], turned[..., 0::2, 1::2] = images[..., 0::2, 1::2], images[..., 0::2, 0::2]
    assert not torch.isclose(vit(turned), logits).all()
    with torch.no_grad():
        vit.embedding.weight.copy_(vit.embedding.weight[:, [1, 0, 2, 3]])
    torch.testing.assert_close(vit(turned), logits)


def test_patches_are_exchangeable_without_positions() -> None:
    images, vit = randn(2, 3, 8, 8), made()
    mirrored = images.unflatten(-1, (4, 2)).flip(-2).flatten(-2)  # the order of the patches, not what is in them
    assert not torch.isclose(vit(mirrored), vit(images)).all()
    with torch.no_grad():
        vit.position.weight.zero_()
    torch.testing.assert_close(vit(mirrored), vit(images))


@every_value(norm=list(NORMS), wiring=list(WIRINGS))
def test_any_norm_any_wiring(norm: str, wiring: str) -> None:
    vit = made(norm=NORMS[norm], wiring=wiring)
    logits = vit(randn(3, 3, 8, 8))
    assert logits.shape == (3, 5)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in vit.parameters())
    assert vit.eval()(randn(1, 3, 8, 8)).isfinite().all()


@pytest.mark.parametrize("norm", chiefly(["layer", "batch"], ["rms"]))
def test_it_learns(norm: str) -> None:
    sizes = config(channels=1, classes=2, norm=TEXT_NORMS[norm])
    assert learns(ViT(sizes), *bars(), lr=3e-3)


def ask(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return lambda: ViT(config())(torch.zeros(shape, dtype=dtype))


@every_refusal(
    ("rank", ShapeError, r"images of shape \(n, 3, 8, 8\), but got \(3, 8, 8\)", ask(3, 8, 8)),
    ("size", ShapeError, r"but got \(2, 3, 8, 7\)", ask(2, 3, 8, 7)),
    ("channels", ShapeError, r"but got \(2, 1, 8, 8\)", ask(2, 1, 8, 8)),
    ("type", DtypeError, "torch.float64", ask(2, 3, 8, 8, dtype=torch.float64)),
    ("bytes", DtypeError, r"torch.uint8; for uint8 use images.float\(\) / 255$", ask(2, 3, 8, 8, dtype=torch.uint8)),
    ("list", ArgumentTypeError, "takes a tensor, but got list", lambda: ViT(config())([1.0])),
    ("patch", ConfigError, "patch=3 does not divide image_size=8", lambda: config(patch=3)),
    ("no-patch", ConfigError, "patch=0 must be", lambda: config(patch=0)),
    ("classes", ConfigError, "classes=0 must be", lambda: config(classes=0)),
    ("image", ConfigError, "image_size=8.0 must be", lambda: config(image_size=8.0)),
    ("norm", ConfigError, "there is no norm 'layers'", lambda: config(norm="layers")),
    ("leak", FutureLeakError, "brackets the token axis", lambda: config(causal=True, norm=TEXT_NORMS["batch"])),
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
