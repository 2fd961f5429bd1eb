"""Legitimate losses that look like mistakes: constant targets, sums, masks, signs, pairs, bounded outputs."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, adamw, healthy, train
from tests.diagnostics.networks import Decoder, mlp
from tests.diagnostics.tasks import images, points, texts


def _sgd(model: nn.Module, lr: float, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


@healthy(quick=False)
def tanh_for_targets_between_minus_one_and_one(seed: int) -> Setup:
    model: Any = nn.Sequential(mlp(16, 32, 2), nn.Tanh())
    return train(model, lambda i: F.mse_loss(model(points(i)[0]), points(i)[0][:, :2].clamp(-1, 1)))


@healthy(quick=False)
def relu_for_counts_with_noise(seed: int) -> Setup:
    """A few targets are slightly negative."""
    model: Any = nn.Sequential(mlp(16, 32, 1), nn.Softplus())

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.smooth_l1_loss(model(x).squeeze(1), labels + 0.05 * x[:, 0])

    return train(model, loss)


@healthy()
def soft_capped_logits(seed: int) -> Setup:
    model: Any = Decoder(depth=1)

    def loss(i: int) -> Tensor:
        x, y = texts(i)
        return F.cross_entropy(15 * torch.tanh(model(x) / 15).flatten(0, 1), y.flatten())

    return train(model, loss)


class ArcFace(nn.Module):
    """Scaled cosines with an angular margin, whose loss starts far above that of guessing."""

    def __init__(self, scale: float = 64.0, margin: float = 0.5) -> None:
        super().__init__()
        self.trunk, self.weight = mlp(16, 32, 8), nn.Parameter(torch.randn(4, 8))
        self.scale, self.margin = scale, margin

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        cosines = F.linear(F.normalize(self.trunk(x)), F.normalize(self.weight)).clamp(-0.999, 0.999)
        wanted = torch.cos(torch.acos(cosines) + self.margin)
        return self.scale * torch.where(F.one_hot(labels, 4).bool(), wanted, cosines)


@healthy()
def arcface(seed: int) -> Setup:
    model: Any = ArcFace()

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        return F.cross_entropy(model(x, labels), labels)

    return train(model, loss)


@healthy()
def clip_loss(seed: int) -> Setup:
    """Both axes of the similarities are normalized, and labels are the positions in the batch."""
    model: Any = nn.ModuleDict({"image": mlp(16, 32, 8), "text": mlp(16, 32, 8)})
    model.scale = nn.Parameter(torch.tensor(2.66))

    def loss(i: int) -> Tensor:
        x, _ = points(i, count=32)
        a = model.image(x) / model.image(x).norm(dim=-1, keepdim=True)
        b = F.normalize(model.text(x.flip(1)), dim=-1)
        logits = model.scale.exp() * a @ b.T
        labels = torch.arange(len(x))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    return train(model, loss)


@healthy(quick=False)
def queue_of_negatives(seed: int) -> Setup:
    """As in MoCo: the positive is always class 0, so labels never vary."""
    model: Any = mlp(16, 32, 8)

    def loss(i: int) -> Tensor:
        x, _ = points(i, count=32)
        q, k = F.normalize(model(x)), F.normalize(model(x + 0.1 * torch.randn_like(x))).detach()
        queue = F.normalize(torch.randn(8, 64), dim=0)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue], dim=1) / 0.07
        return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

    return train(model, loss)


@healthy()
def generator_and_discriminator(seed: int) -> Setup:
    """Each backward pass has constant labels, and the generator's loss rises as the discriminator learns."""
    pair: Any = nn.ModuleDict({"g": mlp(8, 32, 16), "d": mlp(16, 32, 1)})
    g, d = adamw(pair.g), adamw(pair.d, 3e-3)

    def run() -> None:
        for i in range(12):
            real, fake = points(i)[0], pair.g(torch.randn(64, 8))
            d.zero_grad()
            for x, label in ((real, 1.0), (fake.detach(), 0.0)):
                F.binary_cross_entropy_with_logits(pair.d(x), torch.full((64, 1), label)).backward()
            d.step()
            g.zero_grad()
            F.binary_cross_entropy_with_logits(pair.d(fake), torch.ones(64, 1)).backward()
            g.step()

    return pair, run


@healthy(quick=False)
def boundary_of_an_equation(seed: int) -> Setup:
    """A physics-informed network: its value is 0 at the boundary, and its residual is 0 inside."""
    model: Any = mlp(1, 32, 32, 1, activation=nn.Tanh)

    def loss(i: int) -> Tensor:
        x = torch.rand(64, 1, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        ends = model(torch.zeros(64, 1))
        return F.mse_loss(slope, torch.cos(x)) + F.mse_loss(ends, torch.zeros_like(ends))

    return train(model, loss)


@healthy(quick=False)
def summed_loss_of_an_autoencoder(seed: int) -> Setup:
    """The sum over pixels and images, with an optimizer that adapts, and with a small learning rate."""
    model: Any = nn.Sequential(nn.Flatten(), mlp(64, 32, 64), nn.Sigmoid())

    def loss(i: int) -> Tensor:
        x = images(i)[0].clamp(0, 1)
        return F.binary_cross_entropy(model(x), x.flatten(1), reduction="sum")

    return train(model, loss, optimizer=adamw(model) if seed else _sgd(model, 1e-5))


@healthy(quick=False)
def loss_divided_by_micro_batches(seed: int) -> Setup:
    model: Any = mlp(16, 32, 4)
    optimizer = _sgd(model, 0.05)

    def run() -> None:
        for i in range(32):
            x, labels = points(i)
            (F.cross_entropy(model(x), labels) / 16).backward()
            if i % 16 == 15:
                optimizer.step()
                optimizer.zero_grad()

    return model, run


@healthy(quick=False)
def masked_tokens(seed: int) -> Setup:
    """15% of the tokens are replaced, and predicted; some batches of few tokens have none."""
    model: Any = Decoder(causal=False, depth=2, vocab_size=17)

    def loss(i: int) -> Tensor:
        x, _ = texts(i)
        chosen = torch.rand(x.shape) < 0.15
        labels = x.masked_fill(~chosen, -100)
        return F.cross_entropy(model(x.masked_fill(chosen, 16)).flatten(0, 1), labels.flatten())

    return train(model, loss)


class TokenAutoencoder(nn.Module):
    """Tokens through a bottleneck without an axis of tokens: the targets are the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.code = nn.Embedding(16, 8), nn.Linear(128, 12)
        self.decode = nn.Linear(12, 16 * 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.decode(self.code(self.tokens(x).flatten(1))).unflatten(1, (16, 16))
        return y


@healthy()
def token_autoencoder(seed: int) -> Setup:
    model: Any = TokenAutoencoder()
    return train(model, lambda i: F.cross_entropy(model(texts(i)[0]).flatten(0, 1), texts(i)[0].flatten()))


@healthy(quick=False)
def pairs_in_a_ranking_loss(seed: int) -> Setup:
    """Each prediction is meant to be compared with all others, and with all targets of its batch."""
    model: Any = mlp(16, 32, 1)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        score, y = model(x), (labels + x[:, 0])[:, None]
        margins = F.relu(1 - (score - score.T) * (y - y.T).sign()).mean()
        energy = (score.unsqueeze(1) - y.unsqueeze(0)).abs().mean()
        loss: Tensor = margins + 0.1 * energy
        return loss

    return train(model, loss)


@healthy(quick=False)
def policy_gradient_with_costs(seed: int) -> Setup:
    """All rewards are negative, so the sign of the log-likelihoods is that of a loss."""
    model: Any = mlp(16, 32, 4)

    def loss(i: int) -> Tensor:
        x, _ = points(i)
        log_probs = model(x).log_softmax(-1)
        actions = torch.multinomial(log_probs.exp().detach(), 1)
        rewards = -torch.rand(len(x), 1)
        loss: Tensor = -(log_probs.gather(1, actions) * rewards).mean()
        return loss

    return train(model, loss)


@healthy(quick=False)
def hardest_triplets(seed: int) -> Setup:
    """The farthest positive and the nearest negative of each anchor, as in batch-hard mining."""
    model: Any = mlp(16, 32, 8)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        embeddings = F.normalize(model(x))
        distances = torch.cdist(embeddings, embeddings).detach()
        same = labels[:, None] == labels
        positive = (distances * same).argmax(1)
        negative = (distances + 10 * same).argmin(1)
        return F.triplet_margin_loss(embeddings, embeddings[positive], embeddings[negative], margin=0.2)

    return train(model, loss)


@healthy(quick=False)
def some_losses_without_targets(seed: int) -> Setup:
    """One term of several has a mask that is empty in most batches."""
    model: Any = mlp(16, 32, 5)

    def loss(i: int) -> Tensor:
        x, labels = points(i)
        out = model(x)
        found = (labels == 9).float()  # no sample has it
        boxes = (F.l1_loss(out[:, 4], x[:, 0], reduction="none") * found).sum() / found.sum().clamp(min=1)
        return F.cross_entropy(out[:, :4], labels) + boxes

    return train(model, loss)


@healthy(quick=False)
def scaled_by_grad_scaler(seed: int) -> Setup:
    model: Any = mlp(16, 32, 4)
    scaler, optimizer = torch.amp.GradScaler("cpu"), _sgd(model, 0.05)

    def run() -> None:
        for i in range(6):
            optimizer.zero_grad()
            x, labels = points(i)
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return model, run


@healthy(quick=False)
def closures_of_lbfgs(seed: int) -> Setup:
    model: Any = mlp(16, 8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    x, labels = points(0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).squeeze(1), labels.float())
        loss.backward()
        return loss

    def run() -> None:
        for _ in range(3):
            optimizer.step(closure)

    return model, run


class TwoTowers(nn.Module):
    """Contrastive towers, with the learned scale on one of the unit vectors rather than on their product."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = mlp(16, 32, 8), mlp(16, 32, 8)
        self.log_scale = nn.Parameter(torch.tensor(4.0))

    def forward(self, x: Tensor) -> Tensor:
        left, right = F.normalize(self.left(x), dim=-1), F.normalize(self.right(x.flip(1)), dim=-1)
        return (left * self.log_scale.exp()) @ right.mT


@healthy()
def contrastive_with_a_scaled_tower(seed: int) -> Setup:
    model: Any = TwoTowers()

    def loss(i: int) -> Tensor:
        logits: Tensor = model(points(i)[0][:24])
        pairs = torch.arange(24)
        return F.cross_entropy(logits, pairs) + F.cross_entropy(logits.mT, pairs)

    return train(model, loss, optimizer=adamw(model, 1e-4))
