"""Muon follows its formula, and invalid arguments are errors."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from normscope.errors import ConfigError
from normscope.training.optimizers.muon import Muon, orthogonalize
from tests.support import randn


def by_the_formula(
    weight: torch.Tensor, gradients: list[torch.Tensor], lr: float, momentum: float, decay: float
) -> torch.Tensor:
    memory = torch.zeros_like(weight)
    for gradient in gradients:
        memory = momentum * memory + (1 - momentum) * gradient
        direction = momentum * memory + (1 - momentum) * gradient
        rows, columns = weight.shape
        lying = direction if rows <= columns else direction.T
        update = orthogonalize(lying[None])[0]
        update = update if rows <= columns else update.T
        weight = weight - lr * decay * weight - lr * max(1, rows / columns) ** 0.5 * update
    return weight


@pytest.mark.parametrize("shape", [(6, 6), (4, 12), (12, 4)])
def test_three_steps_follow_the_formula(shape: tuple[int, int]) -> None:
    start = randn(*shape, seed=0).double()
    gradients = [randn(*shape, seed=i).double() for i in (1, 2, 3)]
    weight = nn.Parameter(start.clone())
    optimizer = Muon([weight], lr=0.03, momentum=0.9, weight_decay=0.1)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), by_the_formula(start, gradients, 0.03, 0.9, 0.1))


def test_batched_matrices_step_as_they_would_alone() -> None:
    starts = [randn(*shape, seed=i) for i, shape in enumerate([(4, 8), (8, 4), (4, 8), (5, 5)])]
    gradients = [randn(*start.shape, seed=10 + i) for i, start in enumerate(starts)]

    def stepped(groups: list[list[int]]) -> list[torch.Tensor]:
        weights = [nn.Parameter(start.clone()) for start in starts]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()
        for group in groups:
            Muon([weights[i] for i in group]).step()
        return [weight.detach() for weight in weights]

    torch.testing.assert_close(stepped([[0, 1, 2, 3]]), stepped([[0], [1], [2], [3]]))


def test_a_weight_without_a_gradient_is_unchanged() -> None:
    still, moving = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3, 3))
    moving.grad = randn(3, 3, seed=1).float()
    Muon([still, moving]).step()
    assert torch.equal(still, torch.ones(3, 3))
    assert not torch.equal(moving, torch.ones(3, 3))


def test_the_state_round_trips_through_state_dict() -> None:
    weight = nn.Parameter(randn(3, 4, seed=0))
    optimizer = Muon([weight])
    weight.grad = randn(3, 4, seed=1)
    optimizer.step()
    other = nn.Parameter(weight.detach().clone())
    again = Muon([other])
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for parameter, chosen in ((weight, optimizer), (other, again)):
        parameter.grad = randn(3, 4, seed=2)
        chosen.step()
    assert torch.equal(weight, other)


def test_a_closure_is_called_with_gradients_on() -> None:
    weight = nn.Parameter(randn(3, 3, seed=0))
    optimizer = Muon([weight])

    def closure() -> torch.Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 0.0}, "lr=0.0"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"ns_steps": 6}, "ns_steps=6"),
        ({"nesterov": 1}, "nesterov=1"),
    ],
)
def test_invalid_settings_are_errors(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Muon([nn.Parameter(torch.ones(2, 2))], **settings)


def test_a_vector_is_an_error_with_a_fix() -> None:
    with pytest.raises(ConfigError, match=r"shape \(3,\)\nfix: give embeddings, heads, gains and biases to AdamW"):
        Muon([nn.Parameter(torch.ones(3))])


def test_a_learning_rate_beyond_float32_does_not_raise() -> None:
    weight = torch.nn.Parameter(torch.ones(6, 2))
    weight.grad = torch.eye(6, 2)
    Muon([weight], lr=1e308, weight_decay=1e308).step()
    assert float(weight.detach().abs().max()) > 1e30
