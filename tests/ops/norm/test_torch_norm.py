"""Norms by torch's own functions: those of torch.nn, and None where torch has no function that means the same."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import normscope as ns
from normscope.ops.kernel_mode import reference_kernels, use_kernels
from tests.blocks.norm.cases import CASES, TOLERANCE, Case, close_step, every_case, randn


@pytest.fixture(autouse=True)
def _torch() -> Iterator[None]:
    with use_kernels("torch"):
        yield


class Seen(TorchDispatchMode):
    """The names of the operators that ran."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@every_case
def test_a_step_is_that_of_torch_nn(case: Case, dtype: torch.dtype) -> None:
    ours, peer = case.pair(dtype)
    for training in (True, False):
        ours.train(training)
        peer.train(training)
        close_step(ours, peer, case.input(dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@every_case
def test_a_fused_operator_of_torch_runs(case: Case, training: bool) -> None:
    """One at least as special: an instance norm without a gain is a layer norm. On a CPU F.rms_norm is a chain."""
    ours, _ = case.pair()
    ours.train(training)
    with Seen() as mode, torch.no_grad():
        ours(case.input())
    wanted = {"native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"}
    if case.name.startswith("rms"):
        wanted = {"_fused_rms_norm", "rsqrt"}
    assert mode.names & wanted


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (ns.Norm("n [c h w]", statistic="rms", affine="c", c=4), (2, 4, 3, 3)),
        (ns.Norm("[n] (g [c]) [...]", affine="(g c)", g=2, c=2), (3, 4, 5)),
        (ns.Norm("b [s] d", affine="d", d=4), (2, 5, 4)),
        (ns.Norm("[n] c"), (1, 4)),
        (ns.Norm("... [d]", statistic="rms", affine="d", d=6), (3, 6)),
    ],
)
def test_the_reference_runs_where_torch_has_no_such_norm(norm: ns.Norm, shape: tuple[int, ...]) -> None:
    x = randn(shape, 1, torch.float32)
    found = norm(x)
    with reference_kernels():
        assert torch.equal(found, norm(x))


def test_a_mask_runs_the_reference() -> None:
    norm, x, mask = ns.LayerNorm(6), randn((2, 3, 6), 1, torch.float32), torch.tensor([[True, True, False]] * 2)
    found = norm(x, mask)
    with reference_kernels():
        assert torch.equal(found, norm(x, mask))


def test_channels_last_images_keep_their_memory_format() -> None:
    x = randn((2, 6, 3, 4), 1, torch.float32).contiguous(memory_format=torch.channels_last)
    for norm, peer in ((ns.GroupNorm(3, 6), nn.GroupNorm(3, 6)), (ns.BatchNorm2d(6), nn.BatchNorm2d(6))):
        found, expected = norm(x), peer(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


def test_all_layers_of_torch_are_covered() -> None:
    assert {type(case.pair()[1]).__name__ for case in CASES} >= {"LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm2d"}
