"""NaN, Inf, and numbers that a format cannot hold."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.register import planted
from tests.diagnostics.corpus.tuning._data import blobs, counting, digits, line, loader, two_classes, waves


@planted("NaN or Inf", "")
def log_of_a_probability_that_reaches_zero() -> Setup:
    """-(y * log(p) + (1 - y) * log(1 - p)) by hand: once a sigmoid rounds to 1, 0 * log(0) is NaN (forum)."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = two_classes(240)

    def run() -> None:
        for xb, yb in loader(40 * x, y):
            p = model(xb).squeeze(1)
            loss = -(yb * p.log() + (1 - yb) * (1 - p).log()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 8))

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return ((self.embed(a) - self.embed(b)) ** 2).sum(1).sqrt()


@planted("NaN or Inf", "", "embed", "embed.2")
def square_root_of_a_distance_of_zero() -> Setup:
    """Some pairs are a sample with itself; the gradient of sqrt at 0 is Inf, times 0 gives NaN (forum)."""
    model = Siamese()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(10):
            x, y = blobs(32)
            other = torch.randint(32, (32,))
            other[3] = 3
            distance = model(x, x[other])
            same = (y == y[other]).float()
            loss = (same * distance**2 + (1 - same) * (1 - distance).clamp(min=0) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class MaskedMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(13, 16, padding_idx=0)
        self.pooler = nn.Linear(16, 16)
        self.fc = nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> Any:
        mask = (ids != 0).unsqueeze(-1)
        mean = (self.embedding(ids) * mask).sum(1) / mask.sum(1)
        return self.fc(self.pooler(mean).tanh())


@planted("NaN or Inf", "", "pooler")
def mean_over_no_tokens() -> Setup:
    """The masked mean of an empty text is 0 / 0 (forum)."""
    model = MaskedMean()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def run() -> None:
        for step in range(10):
            ids = counting(16, 10) + 1
            labels = (ids[:, 1] - ids[:, 0]) % 12 - 1
            ids = ids.masked_fill(torch.arange(10) >= torch.randint(1, 9, (16, 1)), 0)
            if step == 4:
                ids[2] = 0
            optimizer.zero_grad()
            F.cross_entropy(model(ids), labels.clamp(min=0)).backward()
            optimizer.step()

    return model, run


@planted("NaN after huge updates", "")
def regression_diverges() -> Setup:
    """SGD with lr=1 on targets in the thousands: the loss goes to Inf, then NaN (forum; AUTOTRAINER: exploding)."""
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x, y = line(160)

    def run() -> None:
        for xb, yb in loader(x, 1000 * y):
            optimizer.zero_grad()
            F.mse_loss(model(xb).squeeze(1), yb).backward()
            optimizer.step()

    return model, run


class HalfEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj_in = nn.Linear(10, 64)
        self.proj_mid = nn.Linear(64, 64)
        self.proj_out = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Any:
        h = self.proj_in(x)
        h = h * h
        h = self.proj_mid(h) ** 2
        return self.proj_out(h)


@planted("precision is too low", "", "proj_mid", "proj_out")
def squares_overflow_half_precision() -> Setup:
    """In float16, squared activations of inputs around 60 exceed 65504 (forum: Inf under AMP)."""
    model = HalfEncoder().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(6):
            x, y = blobs(16)
            optimizer.zero_grad()
            F.cross_entropy(model((60 * x).half()).float(), y).backward()
            optimizer.step()

    return model, run


class Attend(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(13, dim, padding_idx=0)
        self.mha = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.cls = nn.Linear(dim, 2)

    def forward(self, ids: Tensor) -> Any:
        x = self.tokens(ids)
        pad = ids == 0
        y = self.mha(x, x, x, key_padding_mask=pad)[0]
        return self.cls(y.masked_fill(pad.unsqueeze(-1), 0).sum(1))


@planted("NaN or Inf", "mha", "")
def every_key_is_padding() -> Setup:
    """A row of padding alone masks all keys: softmax over -inf only is NaN (forum: MultiheadAttention)."""
    model = Attend()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(8):
            ids = counting(16, 8) + 1
            labels = (ids[:, 1] - ids[:, 0]) % 2
            ids = ids.masked_fill(torch.arange(8) >= torch.randint(2, 9, (16, 1)), 0)
            ids[-1] = 0
            optimizer.zero_grad()
            F.cross_entropy(model(ids), labels).backward()
            optimizer.step()

    return model, run


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU())
        self.prototypes = nn.Parameter(torch.randn(4, 12))

    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        h = h / h.norm(dim=1, keepdim=True)
        return 10 * h @ F.normalize(self.prototypes, dim=1).t()


@planted("NaN or Inf", "", "features", "features.4")
def norm_of_a_zero_vector() -> Setup:
    """Features after a ReLU may all be zero, and are divided by their norm without eps (forum)."""
    model = Normalized()
    last: Any = model.features[3]
    nn.init.constant_(last.bias, -0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for (x,) in loader(digits(160)):
            y = x.flatten(1).argmax(1) // 16
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


class GaussianRegressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 16, batch_first=True)
        self.mean, self.var = nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.gru(x)[1][-1]
        return self.mean(h).squeeze(1), self.var(h).squeeze(1)


@planted("NaN or Inf", "", "var", hard=True)
def variance_may_be_negative() -> Setup:
    """The variance of a Gaussian likelihood is a linear output: its log is NaN where it falls below 0 (forum)."""
    model = GaussianRegressor()
    nn.init.constant_(model.var.bias, 0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)

    def run() -> None:
        for _ in range(30):
            x, y = waves(24)
            mean, var = model(x)
            loss = 0.5 * (var.log() + (y - mean) ** 2 / var).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


@planted("scaler skips every step", "")
def scaler_hides_infinite_gradients() -> Setup:
    """A penalty sqrt(0) has a NaN gradient in each step; GradScaler skips them all, and the loss looks fine (forum)."""
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")

    def run() -> None:
        for x, y in loader(*line(160)):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x).squeeze(1).float()
            loss = F.mse_loss(out, y) + 1e-3 * (out - out).pow(2).sum().sqrt()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return model, run
