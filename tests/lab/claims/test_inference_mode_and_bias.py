"""Memory of a forward pass, in stacks where it can be counted by hand."""

import pytest
import torch
from torch import Tensor, nn

from normscope.lab.claims.architecture.inference_mode_and_bias import MODES, kept_memory, peak_memory, relative

LAYERS = 10


@pytest.fixture
def stack() -> nn.Module:
    return nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(LAYERS)))


@pytest.fixture
def tokens() -> Tensor:
    return torch.randn(128, 64)


def test_peak_without_gradients_is_input_plus_output_of_a_layer(stack: nn.Module, tokens: Tensor) -> None:
    two_of_ten = 2 / LAYERS
    assert relative(peak_memory, stack, tokens) == {"grad": 1.0, "no_grad": two_of_ten, "inference_mode": two_of_ten}


def test_only_the_output_is_kept_without_gradients(stack: nn.Module, tokens: Tensor) -> None:
    assert relative(kept_memory, stack, tokens) == {"grad": 1.0, "no_grad": 1 / LAYERS, "inference_mode": 1 / LAYERS}


def test_freed_memory_counts_for_the_peak(tokens: Tensor) -> None:
    class Repeated(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.repeat(8, 1).sum(0)

    assert peak_memory(Repeated(), tokens) == 4 * (8 * 128 * 64 + 64)


def test_profiler_writes_nothing_to_the_terminal(
    stack: nn.Module, tokens: Tensor, capfd: pytest.CaptureFixture[str]
) -> None:
    relative(peak_memory, stack, tokens)
    assert capfd.readouterr() == ("", "")


def test_gradients_are_enabled_in_one_mode_only() -> None:
    found = {}
    for mode, enter in MODES.items():
        with enter():
            found[mode] = torch.is_grad_enabled()
    assert found == {"grad": True, "no_grad": False, "inference_mode": False}
