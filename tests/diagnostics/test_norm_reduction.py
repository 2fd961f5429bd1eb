"""Probing a norm has no side effects: on the module, its state, the RNG or global hooks."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import normscope
from normscope.tracing.module_kinds import is_norm
from tests.diagnostics.test_norms import figures


def after_a_look(make: Any, watched: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """The model, its output and the state of random numbers after one batch."""
    torch.manual_seed(0)
    model, x = make(), torch.randn(8, 16)
    with normscope.xray(model) if watched else torch.enable_grad():
        y = model(x)
    return model, y, torch.get_rng_state()


class Noisy(nn.Module):
    """A weight that is another one whenever it is asked for."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight + 0.01 * torch.randn_like(weight)


def spectral() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)), nn.Tanh())


def noisy() -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16))
    for layer in model:
        nn.utils.parametrize.register_parametrization(layer, "weight", Noisy())
    return model


class DropNorm(nn.Module):
    """Draws random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5) / x.square().mean(-1, keepdim=True).sqrt()


class Counts:
    def __init__(self) -> None:
        self.calls, self.sizes = 0, np.zeros(2)


class ObservationNorm(nn.Module):
    """A memory in plain tensors, arrays, lists and objects, as reinforcement learning has it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log, self.counts = torch.zeros(16), [torch.zeros(1)], Counts()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        self.mean += x.detach().mean(0)
        self.log[0] += 1
        self.log.append(x.detach().mean())
        self.counts.calls += 1
        self.counts.sizes += len(x)
        self.scale.data += 1
        return (x - self.mean) * self.scale


@pytest.mark.parametrize("make", [spectral, noisy, DropNorm, ObservationNorm])
def test_model_output_and_random_numbers_are_as_if_nobody_had_looked(make: Any) -> None:
    plain, output, state = after_a_look(make, watched=False)
    seen, watched_output, watched_state = after_a_look(make, watched=True)
    assert torch.equal(watched_output, output)
    assert torch.equal(watched_state, state)
    for name, value in plain.state_dict().items():
        assert torch.equal(seen.state_dict()[name], value)
    if isinstance(plain, ObservationNorm) and isinstance(seen, ObservationNorm):
        assert torch.equal(seen.mean, plain.mean)
        assert seen.log == plain.log
        assert seen.counts.calls == plain.counts.calls == 1
        assert np.array_equal(seen.counts.sizes, plain.counts.sizes)


class ActiveNorm(nn.BatchNorm1d):
    """With an activation inside, as timm has it."""

    def __init__(self) -> None:
        super().__init__(16)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(super().forward(x))
        return y


def test_what_is_inside_of_a_norm_is_seen_as_often_as_it_runs() -> None:
    with normscope.xray(ActiveNorm()) as x:
        x._model(torch.randn(8, 16))
    assert x.record["act"].calls == 1
    norm = x.record[""].norm
    assert norm is not None
    assert norm.reduced_axes == (0,)


def test_hooks_on_all_modules_are_called_as_often_as_modules_are() -> None:
    calls: list[str] = []
    handle = register_module_forward_hook(lambda module, _, __: calls.append(type(module).__name__))
    try:
        after_a_look(lambda: nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), watched=True)
    finally:
        handle.remove()
    assert calls == ["Linear", "LayerNorm", "Sequential"]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("RMSNorm", True), ("Layernorm2d", True), ("l2_norm", True), ("Normalize", True), ("InputNormaliser", True),
        ("NormalNoise", False), ("LogNormal", False), ("AbnormalityHead", False), ("Enormous", False),
    ],
)  # fmt: skip
def test_norms_are_known_by_the_word(name: str, known: bool) -> None:
    assert is_norm(type(name, (nn.Module,), {})()) is known


def test_what_makes_a_weight_is_no_norm() -> None:
    with normscope.xray(spectral()) as x:
        x._model(torch.randn(8, 16))
    assert all(module.norm is None for module in x.record.modules)
    assert x.findings == []


def test_of_groups_of_one_number_each_is_its_own_mean() -> None:
    assert figures(nn.GroupNorm(6, 6), torch.randn(5, 6)).reduction_size == 1

    class NoNorm(nn.Module):
        """Of MobileBERT: it only scales."""

        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    assert figures(NoNorm(), torch.randn(5, 6)).reduction_size is None


def test_the_usual_number_of_values_counts_and_not_that_of_a_last_batch() -> None:
    norm = nn.BatchNorm1d(6)
    with normscope.xray(norm) as x:
        for size in (64, 64, 5):
            norm(torch.randn(size, 6))
    found = x.record[""].norm
    assert found is not None
    assert found.reduction_size == 64


@pytest.mark.parametrize("length", [12, 16])
def test_the_memory_is_compared_along_the_axis_that_is_kept_apart(length: int) -> None:
    """Also where time is as long as the channels are many."""
    norm = normscope.BatchNorm("[b s] d", d=16)
    centres = torch.linspace(-3, 3, 16)
    for _ in range(60):
        norm(torch.randn(8, length, 16) + centres)
    found = figures(norm, torch.randn(8, length, 16) + centres)
    assert found.drift is not None
    assert found.drift[0] < 0.3
    assert found.drift[1] < 1.5


def test_a_gain_that_starts_at_zero_hides_no_scope() -> None:
    norm = nn.BatchNorm2d(6)
    nn.init.zeros_(norm.weight)
    found = figures(norm, torch.randn(4, 6, 5, 5))
    assert (found.reduced_axes, found.reduction_size) == ((0, 2, 3), 100)
