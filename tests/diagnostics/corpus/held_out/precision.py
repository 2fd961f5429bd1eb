"""NaN, Inf, and numbers that do not fit into a format."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.held_out._shared import TinyGPT, blobs, chars, dense, houses, melodies
from tests.diagnostics.corpus.register import planted


class RateModel(nn.Module):
    """Predicts the rates of counts."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 24)
        self.rate = nn.Linear(24, 1)

    def forward(self, x: Any) -> Any:
        return F.relu(self.rate(F.relu(self.hidden(x)))).squeeze(1)


@planted("NaN or Inf", "", "rate", "relu", "hidden")
def log_of_zero_rates() -> Setup:
    """A Poisson likelihood takes the logarithm of rates that ReLU made zero (forum)."""
    model = RateModel()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(10):
            x, z = houses()
            counts = torch.poisson((0.5 * z).exp())
            rate = model(x)
            loss = (rate - counts * torch.log(rate)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class Embedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6))

    def forward(self, x: Any) -> Any:
        return self.net(x)


@planted("NaN or Inf", "", "net", "net.0", "net.2")
def distance_of_a_point_to_itself() -> Setup:
    """The square root of the squared distances of all pairs has an infinite slope at the diagonal's zeros (forum)."""
    model = Embedder()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(8):
            x, labels = blobs(24)
            z = model(x)
            distance = (z[:, None] - z[None]).square().sum(2).sqrt()
            same = (labels[:, None] == labels[None]).float()
            loss = (same * distance + (1 - same) * F.relu(2 - distance)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class MaskedMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(20, 16, padding_idx=0)
        self.ff = nn.Linear(16, 2)

    def forward(self, tokens: Any) -> Any:
        keep = (tokens != 0).float()
        return self.ff((self.emb(tokens) * keep[..., None]).sum(1) / keep.sum(1, keepdim=True))


@planted("NaN or Inf", "", "emb", "ff")
def mean_over_an_empty_text() -> Setup:
    """The mean over words divides by the number of words, which is zero for an empty text: 0 / 0 (forum)."""
    model = MaskedMean()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for step in range(10):
            tokens = torch.randint(1, 20, (16, 8))
            tokens[:, 5:] = 0
            if step >= 3:
                tokens[4] = 0
            labels = (tokens[:, 0] > 10).long()
            loss = F.cross_entropy(model(tokens), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("NaN after huge updates", "", "0", "2", "4")
def regression_diverges_to_nan() -> Setup:
    """SGD(lr=1) on targets in the thousands diverges within a few steps (AUTOTRAINER: exploding gradient; forum)."""
    model = dense(6, 32, 32, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)

    def run() -> None:
        for _ in range(12):
            x, z = houses()
            loss = F.mse_loss(model(x).squeeze(1), 3000 + 800 * z)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class HalfNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 4000.0
        self.fc1 = nn.Linear(6, 64)
        self.fc2 = nn.Linear(64, 64)
        self.fc3 = nn.Linear(64, 1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.fc1(x * self.scale))
        return self.fc3(F.relu(self.fc2(x)).square()).squeeze(-1)


@planted("precision is too low", "", "fc1", "fc2", "fc3")
def squares_overflow_in_float16() -> Setup:
    """A model in float16 squares values in the thousands: above 65504 they are infinite (forum)."""
    model = HalfNet().half()
    opt = torch.optim.SGD(model.parameters(), lr=1e-6)

    def run() -> None:
        for _ in range(6):
            x, y = houses(32)
            loss = F.mse_loss(model(x.half()), y.half())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class ContrastiveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 16, bias=False)
        self.second = nn.Linear(16, 8, bias=False)

    def forward(self, x: Any) -> Any:
        z = F.relu(self.second(F.relu(self.first(x))))
        return z / z.norm(dim=1, keepdim=True)


@planted("NaN or Inf", "", "second", "relu", "norm")
def norm_of_a_zero_vector() -> Setup:
    """Embeddings after ReLU are divided by their norm without eps, and an empty sample has norm zero (forum)."""
    model = ContrastiveNet()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for step in range(8):
            x, _ = blobs(32)
            if step == 3:
                x[5] = 0.0
            a, b = model(x + 0.1 * x.sign() * torch.rand(32, 1)), model(x)
            loss = F.cross_entropy(a @ b.T / 0.2, torch.arange(32))
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class PooledAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(3, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.classify = nn.Linear(16, 3)

    def forward(self, x: Any, lengths: Any) -> Any:
        h = self.project(x)
        padding = torch.arange(x.shape[1]) >= lengths[:, None]
        h, _ = self.attend(h, h, h, key_padding_mask=padding)
        return self.classify(h.mean(1))


@planted("NaN or Inf", "attend", "")
def row_of_the_mask_all_infinite() -> Setup:
    """A sequence of length zero masks all keys: the softmax of nothing but -inf is NaN (forum)."""
    model = PooledAttention()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def run() -> None:
        for step in range(8):
            x, y = melodies(16)
            lengths = torch.randint(5, 11, (16,))
            if step == 2:
                lengths[7] = 0
            loss = F.cross_entropy(model(x, lengths), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("precision is too low", "", "lm_head", "h.0", "h.1", "wte", "wpe", hard=True)
def float16_gradients_without_scaler() -> Setup:
    """A language model in float16 divides its summed loss by the tokens of the whole data set, without a GradScaler:
    gradients below 6e-8 become zero (forum)."""
    model = TinyGPT().half()
    opt = torch.optim.SGD(model.parameters(), lr=10.0)
    tokens = 20_000_000

    def run() -> None:
        for _ in range(6):
            x, y = chars(12)
            loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten(), reduction="sum") / tokens
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run
