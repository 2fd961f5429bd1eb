"""What is found out of norms by trying a copy of them: scopes, eps against the signal, memory, padding."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope
from normscope.diagnostics.stats.tensors import NormStats

IMAGE, TEXT = (4, 6, 5, 5), (3, 7, 6)


def figures(norm: nn.Module, x: Tensor) -> NormStats:
    with normscope.xray(norm) as seen:
        norm(x)
    found = seen.record[""].norm
    assert found is not None
    return found


CASES: list[tuple[Any, tuple[int, ...], tuple[int, ...], bool]] = [
    (nn.LayerNorm(6), TEXT, (2,), False),
    (nn.RMSNorm(6), TEXT, (2,), False),
    (nn.LayerNorm([6, 5, 5]), IMAGE, (1, 2, 3), False),
    (nn.GroupNorm(2, 6), IMAGE, (1, 2, 3), False),
    (nn.GroupNorm(6, 6), IMAGE, (2, 3), True),
    (nn.InstanceNorm2d(6), IMAGE, (2, 3), True),
    (nn.BatchNorm2d(6), IMAGE, (0, 2, 3), True),
    (nn.BatchNorm1d(7), TEXT, (0, 2), True),
    (normscope.LayerNorm(6), TEXT, (2,), False),
    (normscope.RMSNorm(6), TEXT, (2,), False),
    (normscope.BatchNorm2d(6), IMAGE, (0, 2, 3), True),
    (normscope.Norm("b [s] d", affine="d", d=6), TEXT, (1,), True),
    (normscope.Norm("[b s] d", state="running", affine="d", d=6), TEXT, (0, 1), True),
]


@pytest.mark.parametrize(("norm", "shape", "shares", "removes"), CASES, ids=lambda case: str(case)[:40])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_scope_is_found_by_trying(
    norm: nn.Module, shape: tuple[int, ...], shares: tuple[int, ...], removes: bool, mode: str
) -> None:
    norm.train(mode == "train")
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    x = torch.randn(shape)
    found = figures(norm, x)
    assert found.reduced_axes == shares
    assert found.removes_bias == removes
    if mode == "eval":  # and the norm itself has not moved
        assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


class Llamas(nn.Module):
    """An RMSNorm as others write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.full((6,), 2.0)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


class MyNorm(Llamas):
    pass


def test_a_norm_that_others_wrote_is_known_by_its_name() -> None:
    found = figures(MyNorm(), 3 * torch.randn(TEXT))
    assert (found.reduced_axes, found.eps, found.weight_mean, found.weight_std) == ((2,), 1e-6, 2.0, 0.0)
    with normscope.xray(Llamas()) as seen:
        pass
    assert seen.record[""].norm is None


def test_the_variance_that_eps_meets() -> None:
    """Of a LayerNorm the variance of a row, of an RMSNorm its mean square; of a BatchNorm that of a channel."""
    x = 0.01 * torch.randn(50, 20, 32) + 5.0
    assert figures(nn.LayerNorm(32), x).input_variance == pytest.approx(1e-4, rel=0.1)
    assert figures(nn.RMSNorm(32), x).input_variance == pytest.approx(25, rel=0.01)
    channels = torch.randn(50, 8, 20) * torch.arange(8.0)[:, None]
    assert figures(nn.BatchNorm1d(8), channels).input_variance == pytest.approx(9, rel=0.2)  # the middle one


def test_running_statistics_against_the_batch() -> None:
    norm = nn.BatchNorm1d(4)
    for _ in range(100):
        norm(torch.randn(64, 4) * 2 + 1)
    norm.eval()
    near, far = figures(norm, torch.randn(256, 4) * 2 + 1), figures(norm, torch.randn(256, 4) * 6 - 20)
    assert near.batches_tracked == 100
    assert near.drift is not None
    assert far.drift is not None
    assert near.drift[0] < 0.3
    assert near.drift[1] < 1.5
    assert far.drift[0] > 5
    assert far.drift[1] > 5


def test_padding_at_the_end_of_texts() -> None:
    norm = nn.BatchNorm1d(5)
    x = torch.randn(4, 5, 10)
    assert figures(norm, x).padding_fraction == 0
    for row, length in enumerate((10, 7, 4, 10)):
        x[row, :, length:] = 0.5
    assert figures(norm, x).padding_fraction == pytest.approx(9 / 40)
    x[:, :, 6:] = 0.0  # all texts end at the same place: not padding, but what they are
    x[:, :, 5] = torch.randn(4, 5)
    assert figures(norm, x).padding_fraction == 0


def test_one_value_a_channel() -> None:
    norm = nn.BatchNorm1d(3)
    with normscope.xray(norm) as seen, pytest.raises(ValueError, match="more than 1 value"):
        norm(torch.randn(1, 3))
    found = seen.record[""].norm
    assert found is not None
    assert found.reduction_size == 1
