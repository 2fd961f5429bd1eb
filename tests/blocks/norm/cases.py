"""The layers that torch.nn has too: one table that every parity test runs through.

A faster path joins the proof by adding itself to `PATHS`: then every test of this folder runs on it as well.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.ops.kernel_mode import use_kernels

Path = Callable[[], contextlib.AbstractContextManager[None]]

PATHS: dict[str, Path] = {"reference": partial(use_kernels, "reference"), "fused": partial(use_kernels, "fused")}
"""What can compute a norm, each with a context that switches it on. `tests/ops/norm/test_torch_norm.py` has torch's."""

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
HALVES = (torch.bfloat16, torch.float16)

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""How far two results may be apart, relative to 1 or to their size: some roundings of the type."""


@dataclass(frozen=True)
class Case:
    """One layer as a user would write it, in torch and here, with a shape that it takes."""

    name: str
    ours: Callable[..., ns.Norm]
    peer: Callable[..., nn.Module]
    shape: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    scale: float = 1.0  # of the input: a small one lets eps have its say

    def pair(self, dtype: torch.dtype = torch.float32, **kwargs: Any) -> tuple[ns.Norm, nn.Module]:
        """Our layer and torch's, with the same parameters, which are neither 1 nor 0."""
        peer = self.peer(*self.args, **{"dtype": dtype, **self.kwargs, **kwargs})
        ours = self.ours(*self.args, **{"dtype": dtype, **self.kwargs, **kwargs})
        scramble(peer)
        ours.load_state_dict(peer.state_dict())
        return ours, peer

    def input(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
        return (self.scale * randn(self.shape, seed)).to(dtype)


def randn(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers that depend on the seed alone, off centre so that centring shows."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 1.5 + 0.5).to(dtype)


def scramble(module: nn.Module, seed: int = 100) -> None:
    """Give every parameter and running statistic a value that would show if it were used wrongly."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(randn(tuple(parameter.shape), seed + i))
        for i, (name, buffer) in enumerate(module.named_buffers()):
            if buffer.is_floating_point():
                values = randn(tuple(buffer.shape), seed + 50 + i)
                buffer.copy_(values if name.endswith(("mean", "pull")) else values.square() + 0.5)


CASES = (
    Case("layer", ns.LayerNorm, nn.LayerNorm, (2, 5, 6), (6,)),
    Case("layer-no-bias", ns.LayerNorm, nn.LayerNorm, (2, 5, 6), (6,), {"bias": False}),
    Case("layer-no-affine", ns.LayerNorm, nn.LayerNorm, (5, 6), (6,), {"elementwise_affine": False}),
    Case("layer-three-axes", ns.LayerNorm, nn.LayerNorm, (2, 3, 4, 5), ([3, 4, 5],), {"eps": 1e-3}),
    Case("layer-whole", ns.LayerNorm, nn.LayerNorm, (7,), (7,)),
    Case("rms", ns.RMSNorm, nn.RMSNorm, (2, 5, 6), (6,)),
    Case("rms-no-gain", ns.RMSNorm, nn.RMSNorm, (2, 5, 6), (6,), {"elementwise_affine": False}),
    Case("rms-eps", ns.RMSNorm, nn.RMSNorm, (2, 5, 6), (6,), {"eps": 1e-2}),
    Case("rms-small", ns.RMSNorm, nn.RMSNorm, (2, 5, 6), (6,), {"elementwise_affine": False}, scale=3e-4),
    Case("rms-two-axes", ns.RMSNorm, nn.RMSNorm, (2, 5, 6), ((5, 6),), {"eps": 1e-6}),
    Case("group", ns.GroupNorm, nn.GroupNorm, (2, 6, 3, 4), (3, 6)),
    Case("group-no-bias", ns.GroupNorm, nn.GroupNorm, (2, 6, 3, 4), (2, 6), {"bias": False}),
    Case("group-no-affine", ns.GroupNorm, nn.GroupNorm, (2, 6, 5), (6, 6), {"affine": False}),
    Case("group-of-one", ns.GroupNorm, nn.GroupNorm, (3, 6), (1, 6), {"eps": 1e-3}),
    Case("batch", ns.BatchNorm, nn.BatchNorm2d, (4, 3, 2, 5), (3,)),
    Case("batch1d", ns.BatchNorm1d, nn.BatchNorm1d, (6, 3), (3,)),
    Case("batch1d-positions", ns.BatchNorm1d, nn.BatchNorm1d, (4, 3, 5), (3,), {"momentum": 0.3}),
    Case("batch2d", ns.BatchNorm2d, nn.BatchNorm2d, (4, 3, 2, 5), (3,), {"eps": 1e-3}),
    Case("batch3d", ns.BatchNorm3d, nn.BatchNorm3d, (3, 3, 2, 3, 2), (3,)),
    Case("batch-mean-of-all", ns.BatchNorm2d, nn.BatchNorm2d, (4, 3, 2, 5), (3,), {"momentum": None}),
    Case("batch-no-memory", ns.BatchNorm2d, nn.BatchNorm2d, (4, 3, 2, 5), (3,), {"track_running_stats": False}),
    Case("batch-no-affine", ns.BatchNorm2d, nn.BatchNorm2d, (4, 3, 2, 5), (3,), {"affine": False}),
    Case("batch-no-bias", ns.BatchNorm1d, nn.BatchNorm1d, (4, 3, 5), (3,), {"bias": False}),
    Case("instance1d", ns.InstanceNorm1d, nn.InstanceNorm1d, (2, 3, 6), (3,)),
    Case("instance2d", ns.InstanceNorm2d, nn.InstanceNorm2d, (2, 3, 3, 4), (3,), {"affine": True}),
    Case(
        "instance2d-no-bias", ns.InstanceNorm2d, nn.InstanceNorm2d, (2, 3, 3, 4), (3,), {"affine": True, "bias": False}
    ),
    Case("instance3d", ns.InstanceNorm3d, nn.InstanceNorm3d, (2, 3, 2, 3, 2), (3,), {"eps": 1e-3}),
    Case("instance", ns.InstanceNorm, nn.InstanceNorm2d, (2, 3, 3, 4), (3,)),
    Case("instance-memory", ns.InstanceNorm2d, nn.InstanceNorm2d, (2, 3, 3, 4), (3,), {"track_running_stats": True}),
    Case(
        "instance-memory-affine",
        ns.InstanceNorm1d,
        nn.InstanceNorm1d,
        (3, 3, 6),
        (3,),
        {"affine": True, "track_running_stats": True, "momentum": 0.4},
    ),
    Case("instance1d-single", ns.InstanceNorm1d, nn.InstanceNorm1d, (3, 6), (3,), {"affine": True}),
    Case("instance2d-single", ns.InstanceNorm2d, nn.InstanceNorm2d, (3, 3, 4), (3,), {"track_running_stats": True}),
    Case("instance3d-single", ns.InstanceNorm3d, nn.InstanceNorm3d, (3, 2, 3, 2), (3,)),
)

CASES_BY_NAME = {case.name: case for case in CASES}
DTYPES_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
MODES = {"train": True, "eval": False}


def mostly_on(path: str) -> pytest.MarkDecorator:
    """For tests that do not depend on the path, or hardly: by default they run on this one alone."""
    paths = [name if name == path else pytest.param(name, marks=pytest.mark.exhaustive) for name in PATHS]
    return pytest.mark.parametrize("path", paths, indirect=True, scope="module")


on_one_path = mostly_on("fused")
"""For norms in float64, which no kernel takes: both paths are the reference."""


every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def close(ours: Tensor | None, peer: Tensor | None, tolerance: float, what: str) -> None:
    """Both missing, or both there with one type and shape and nearly the same values."""
    if ours is None or peer is None:
        assert ours is None, what
        assert peer is None, what
        return
    assert ours.dtype == peer.dtype, what
    torch.testing.assert_close(ours, peer, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def close_states(ours: nn.Module, peer: nn.Module, tolerance: float) -> None:
    """The same buffers with the same values, the counter included."""
    mine, theirs = dict(ours.named_buffers()), dict(peer.named_buffers())
    assert mine.keys() == theirs.keys()
    for name, buffer in mine.items():
        close(buffer, theirs[name], tolerance, name)


def close_gradients(ours: nn.Module, peer: nn.Module, tolerance: float) -> None:
    mine, theirs = dict(ours.named_parameters()), dict(peer.named_parameters())
    assert mine.keys() == theirs.keys()
    for name, parameter in mine.items():
        close(parameter.grad, theirs[name].grad, tolerance, f"gradient of {name}")


def close_step(ours: nn.Module, peer: nn.Module, x: Tensor, tolerance: float, seed: int = 7) -> None:
    """One pass forwards and backwards through both: outputs, all gradients and what is remembered agree."""
    results = []
    for module in (ours, peer):
        module.zero_grad()
        leaf = x.detach().requires_grad_()
        y = module(leaf)
        y.backward(randn(tuple(y.shape), seed, y.dtype))
        results.append((y, leaf.grad))
    (y, dx), (peer_y, peer_dx) = results
    close(y, peer_y, tolerance, "output")
    close(dx, peer_dx, tolerance, "gradient of the input")
    close_gradients(ours, peer, tolerance)
    close_states(ours, peer, tolerance)
