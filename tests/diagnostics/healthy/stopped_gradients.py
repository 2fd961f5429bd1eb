"""Gradients that are stopped on purpose."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, adamw, healthy, run_steps
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import points


class SimSiam(nn.Module):
    """Each view predicts the other one, which gets no gradient from it (Chen & He 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.predictor = mlp(16, 32, 16), mlp(16, 8, 16)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.encoder(a), self.encoder(b)
        first = F.cosine_similarity(self.predictor(a), b.detach()).mean()
        return -(first + F.cosine_similarity(self.predictor(b), a.detach()).mean()) / 2


@healthy((0, 1))
def simsiam(seed: int) -> Setup:
    model: Any = SimSiam()
    views = [(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)) for x in (points(seed)[0],) for _ in "12"]
    return model, lambda: run_steps([lambda: model(*views[0]), lambda: model(*views[1])], adamw(model))


class AveragedTarget(nn.Module):
    """The second network follows the first one, although the optimizer holds both."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.head, self.two = mlp(16, 32, 16), mlp(16, 8, 16), mlp(16, 32, 16)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            goal = self.two(x)
        loss = F.mse_loss(self.head(self.one(x)), goal)
        for average, new in zip(self.two.parameters(), self.one.parameters(), strict=True):
            average.data.mul_(0.99).add_(new.data, alpha=0.01)
        return loss


@healthy((0, 1))
def average_of_a_network_as_target(seed: int) -> Setup:
    model: Any = AveragedTarget()
    return model, lambda: run_steps([lambda: model(points(seed)[0])] * 6, adamw(model))


class Quantized(nn.Module):
    """A codebook whose rows are averages, and gradients that pass it straight through (van den Oord et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.codes = mlp(16, 32, 8), mlp(8, 32, 16), nn.Embedding(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        chosen = torch.cdist(z, self.codes.weight).argmin(1)
        rows = self.codes(chosen)
        with torch.no_grad():
            self.codes.weight[chosen] = 0.9 * self.codes.weight[chosen] + 0.1 * z
        y = self.decoder(z + (rows - z).detach())
        return F.mse_loss(y, x) + 0.25 * F.mse_loss(z, rows.detach())


@healthy((0, 1))
def straight_through_codebook_of_averages(seed: int) -> Setup:
    model: Any = Quantized()
    return model, lambda: run_steps([lambda: model(points(seed)[0])] * 6, adamw(model))


@healthy((0, 1))
def outputs_logged_in_numpy(seed: int) -> Setup:
    model: Any = mlp(16, 32, 4)
    x, labels = points(seed)
    log: list[Any] = []

    def objective() -> Tensor:
        y = model(x)
        loss = F.cross_entropy(y, labels)
        log.extend((y.detach().numpy(), loss.item(), (y.argmax(1) == labels).float().mean().item()))
        return loss

    return model, lambda: run_steps([objective] * 6, adamw(model))


class ActorCritic(nn.Module):
    """The critic's values are subtracted without a gradient, and the actions are samples."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(16, 32, 4), mlp(16, 32, 1)

    def forward(self, x: Tensor, best: Tensor) -> Tensor:
        chances = torch.distributions.Categorical(logits=self.actor(x))
        action, value = chances.sample(), self.critic(x).squeeze(1)
        reward = torch.tensor([float(a == b) for a, b in zip(action.tolist(), best.tolist(), strict=True)])
        gain: Tensor = (chances.log_prob(action) * (reward - value.detach())).mean()
        return F.mse_loss(value, reward) - gain


@healthy((0, 1))
def actor_critic(seed: int) -> Setup:
    model: Any = ActorCritic()
    return model, lambda: run_steps([lambda: model(*points(seed))] * 6, adamw(model))


class Pretrained(nn.Module):
    """Features under no_grad: only the head is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = mlp(16, 32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = F.relu(self.features(x))
        y: Tensor = self.head(x)
        return y


@healthy((0, 1))
def features_of_a_pretrained_network(seed: int) -> Setup:
    model: Any = Pretrained()
    x, labels = points(seed)
    return model, lambda: run_steps([lambda: F.cross_entropy(model(x), labels)] * 6, adamw(model.head))


class GaussianPolicy(nn.Module):
    """Actions are samples, and a critic reads them: the policy learns from the logarithm of their density."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.critic = mlp(16, 32, 4), mlp(18, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_std = self.policy(x).chunk(2, 1)
        density = torch.distributions.Normal(mean, log_std.clamp(-2, 1).exp())
        action = density.sample()
        value = self.critic(torch.cat([x, action], 1)).squeeze(1)
        reward = -(action - x[:, :2]).square().mean(1)
        gain: Tensor = (density.log_prob(action).sum(1) * (reward - value.detach())).mean()
        return F.mse_loss(value, reward) - gain


@healthy((0, 1))
def critic_reads_sampled_actions(seed: int) -> Setup:
    model: Any = GaussianPolicy()
    return model, lambda: run_steps([lambda: model(points(seed)[0])] * 6, adamw(model))
