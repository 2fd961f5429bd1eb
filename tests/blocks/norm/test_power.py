"""PowerNorm against Algorithm 2 of its paper, written out in numpy over a list of tokens."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import normscope as ns
from normscope.errors import ConfigError
from tests.blocks.norm.cases import close, randn, scramble

Array = NDArray[np.float64]
F64 = torch.float64


@dataclass
class Algorithm2:
    """Shen et al. 2020: one row of `x` is one of the B values that each feature's statistics are taken over."""

    gamma: Array
    beta: Array
    memory: float  # alpha
    eps: float
    warmup: int = 0
    psi_square: Array = field(default_factory=lambda: np.ones(3))
    nu: Array = field(default_factory=lambda: np.zeros(3))
    steps: int = 0

    def forward(self, x: Array) -> Array:
        self.batch_square = np.mean(x**2, axis=0)
        self.uses_batch = self.steps < self.warmup
        before = self.batch_square if self.uses_batch else self.psi_square
        self.psi = np.sqrt(before + self.eps)
        self.xhat = x / self.psi
        self.psi_square = self.memory * self.psi_square + (1 - self.memory) * self.batch_square
        self.steps += 1
        return self.gamma * self.xhat + self.beta

    def evaluate(self, x: Array) -> Array:
        return self.gamma * x / np.sqrt(self.psi_square + self.eps) + self.beta

    def backward(self, dy: Array) -> tuple[Array, Array, Array]:
        dgamma, dbeta = np.sum(dy * self.xhat, axis=0), np.sum(dy, axis=0)
        dxhat = dy * self.gamma
        pull = np.mean(dxhat * self.xhat, axis=0)  # Lambda
        if self.uses_batch:  # the true gradient through the batch's own mean square; nu is not in use yet
            return (dxhat - pull * self.xhat) / self.psi, dgamma, dbeta
        power = np.mean(self.xhat**2, axis=0)  # Gamma
        dx = (dxhat - self.nu * self.xhat) / self.psi
        self.nu = self.nu * (1 - (1 - self.memory) * power) + (1 - self.memory) * pull
        return dx, dgamma, dbeta


def _rows(x: Tensor, features: int, mask: Tensor | None) -> Array:
    """The real values as a list of rows, each with all the features."""
    last = x.detach().movedim(features, -1)
    if mask is None:
        return last.reshape(-1, last.shape[-1]).numpy()
    real = mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim())).expand(x.shape).movedim(features, -1)
    return last[real[..., 0]].numpy()


@dataclass(frozen=True)
class Setting:
    name: str
    shape: tuple[int, ...]
    scope: str | None = None
    mask: tuple[int, ...] | None = None
    warmup: int = 0

    def norm(self) -> ns.PowerNorm:
        settings: dict[str, object] = {"eps": 1e-3, "momentum": 0.2, "warmup": self.warmup, "dtype": F64}
        norm = ns.PowerNorm(3, **settings) if self.scope is None else ns.PowerNorm(self.scope, c=3, **settings)  # type: ignore[arg-type]
        with torch.no_grad():
            assert norm.weight is not None
            assert norm.bias is not None
            norm.weight.copy_(randn((3,), 30))
            norm.bias.copy_(randn((3,), 31))
        return norm


SETTINGS = [
    Setting("rows", (6, 3)),
    Setting("text", (2, 4, 3)),
    Setting("sequence-first", (2, 2, 2, 3)),
    Setting("padding", (3, 4, 3), mask=(3, 4)),
    Setting("whole-samples-of-padding", (4, 2, 3), mask=(4,)),
    Setting("warmup", (2, 4, 3), warmup=2),
    Setting("warmup-and-padding", (3, 4, 3), mask=(3, 4), warmup=1),
    Setting("images", (2, 3, 2, 4), scope="[n] c [...]"),
    Setting("images-and-padding", (2, 3, 2, 4), scope="[n] c [...]", mask=(2, 1, 2, 4)),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_several_steps_of_the_algorithm(setting: Setting) -> None:
    norm = setting.norm()
    assert norm.weight is not None
    assert norm.bias is not None
    gamma, beta = norm.weight.detach().numpy(), norm.bias.detach().numpy()
    paper = Algorithm2(gamma, beta, memory=0.8, eps=1e-3, warmup=setting.warmup)
    features = 1 if setting.scope else len(setting.shape) - 1
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        mask = None if setting.mask is None else torch.rand(setting.mask, generator=generator) < 0.7
        x = (randn(setting.shape, 40 + step) * (1 + step)).requires_grad_()
        dy = randn(setting.shape, 50 + step)
        norm.zero_grad()
        y = norm(x, mask)
        torch.autograd.backward(y, dy)
        assert x.grad is not None
        np.testing.assert_allclose(_rows(y, features, mask), paper.forward(_rows(x, features, mask)), rtol=1e-10)
        dx, dgamma, dbeta = paper.backward(_rows(dy, features, mask))
        np.testing.assert_allclose(_rows(x.grad, features, mask), dx, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(norm.weight.grad, dgamma, rtol=1e-9, atol=1e-12)  # type: ignore[arg-type]
        np.testing.assert_allclose(norm.bias.grad, dbeta, rtol=1e-9, atol=1e-12)  # type: ignore[arg-type]
        np.testing.assert_allclose(norm.get_buffer("running_square"), paper.psi_square, rtol=1e-10)
        np.testing.assert_allclose(norm.get_buffer("running_nu"), paper.nu, rtol=1e-9, atol=1e-12)
        assert norm.num_batches_tracked == step + 1
    assert np.abs(paper.nu).min() > 1e-3  # what the backward pass remembers has come into play
    norm.eval()
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    x = randn(setting.shape, 60).requires_grad_()
    y = norm(x)
    torch.autograd.backward(y, torch.ones_like(y))
    np.testing.assert_allclose(_rows(y, features, None), paper.evaluate(_rows(x, features, None)), rtol=1e-10)
    for name, value in norm.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_two_backward_passes_of_one_forward_pass() -> None:
    """Each backward pass is a step of nu, as each forward pass is one of psi."""
    norm = SETTINGS[0].norm()
    assert norm.weight is not None
    assert norm.bias is not None
    paper = Algorithm2(norm.weight.detach().numpy(), norm.bias.detach().numpy(), memory=0.8, eps=1e-3)
    x = randn((6, 3), 70).requires_grad_()
    y = norm(x)
    paper.forward(x.detach().numpy())
    for seed in (71, 72):
        dy = randn((6, 3), seed)
        (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        np.testing.assert_allclose(dx, paper.backward(dy.numpy())[0], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(norm.get_buffer("running_nu"), paper.nu, rtol=1e-9, atol=1e-12)


def test_two_forward_passes_before_their_backward_passes() -> None:
    """Gradient accumulation over a loss of two parts: each pass divides by its own psi, though psi has moved on."""
    norm = SETTINGS[0].norm()
    assert norm.weight is not None
    x, z = randn((6, 3), 73).requires_grad_(), randn((6, 3), 74).requires_grad_()
    first, psi_first = norm(x), torch.ones(3, dtype=F64)
    psi_second = norm.get_buffer("running_square").clone()
    second = norm(z)
    (dx,) = torch.autograd.grad(first.sum(), x)
    nu = norm.get_buffer("running_nu").clone()
    (dz,) = torch.autograd.grad(second.sum(), z)
    close(dx, (norm.weight / (psi_first + 1e-3).sqrt()).expand(6, 3), 1e-10, "first, with nu still zero")
    psi = (psi_second + 1e-3).sqrt()
    close(dz, (norm.weight - nu * z / psi) / psi, 1e-10, "second, with the nu that the first left")


def test_memory_travels_in_the_state_dict() -> None:
    norm = SETTINGS[0].norm()
    torch.autograd.backward(norm(randn((6, 3), 75)).square().sum())
    assert list(norm.state_dict()) == ["weight", "bias", "running_square", "running_nu", "num_batches_tracked"]
    twin = SETTINGS[0].norm()
    twin.load_state_dict(norm.state_dict())
    x, twin_x = (randn((6, 3), 76).requires_grad_() for _ in range(2))
    torch.autograd.backward(norm(x).square().sum())
    torch.autograd.backward(twin(twin_x).square().sum())
    assert x.grad is not None
    assert twin_x.grad is not None
    assert torch.equal(x.grad, twin_x.grad)
    norm.reset_running_stats()
    assert norm.get_buffer("running_nu").tolist() == [0, 0, 0]
    assert norm.get_buffer("running_square").tolist() == [1, 1, 1]


def test_no_gradient_leaves_the_pull_alone() -> None:
    norm = SETTINGS[0].norm()
    with torch.no_grad():
        norm(randn((6, 3), 77))
    assert norm.get_buffer("running_nu").tolist() == [0, 0, 0]
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_smaller_types_round_the_same_result(dtype: torch.dtype) -> None:
    norm, exact = ns.PowerNorm(3, dtype=dtype), ns.PowerNorm(3, dtype=F64)
    scramble(norm)
    exact.load_state_dict(norm.state_dict())
    x = randn((4, 3), 78, dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    y, y_exact = norm(x), exact(wide)
    torch.autograd.backward(y, torch.ones_like(y))
    torch.autograd.backward(y_exact, torch.ones_like(y_exact))
    assert x.grad is not None
    assert wide.grad is not None
    for name in ("running_square", "running_nu"):
        assert torch.equal(norm.get_buffer(name), exact.get_buffer(name).to(dtype))
    assert torch.equal(y, y_exact.to(dtype))
    assert torch.equal(x.grad, wide.grad.to(dtype))


def test_one_token_is_a_batch_too() -> None:
    """Nothing here divides by the batch's own variance, so nothing has to be refused."""
    norm = ns.PowerNorm(3)
    assert norm(torch.full((1, 3), 2.0)).mean().item() == pytest.approx(2.0, rel=1e-4)


def test_training_with_it_reduces_the_loss() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), ns.PowerNorm(16), nn.ReLU(), nn.Linear(16, 1))
    x = torch.randn(64, 4)
    target = torch.sin(x.sum(-1, keepdim=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(150):
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    assert losses[-1] < 0.2 * losses[0]
    assert nn.functional.mse_loss(model(x), target).item() < 0.25 * losses[0]


def test_every_statistic_needs_a_place_to_be_remembered() -> None:
    with pytest.raises(ConfigError, match="'n'"):
        ns.Norm("n c [...]", statistic="rms", state="power", c=3)
