"""Data and models which several cases of this half use."""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TEXT = (
    "the cat sat on the mat and the dog sat on the log while the cat and the dog ate the rat that sat on the hat " * 6
)
CHARS = sorted(set(TEXT))
ENCODED = torch.tensor([CHARS.index(c) for c in TEXT])


def blobs(n: int = 64, width: int = 10, classes: int = 3, spread: float = 0.6) -> tuple[Tensor, Tensor]:
    """Clusters around fixed centers."""
    centers = torch.randn(classes, width, generator=torch.Generator().manual_seed(77))
    labels = torch.randint(classes, (n,))
    return centers[labels] + spread * torch.randn(n, width), labels


def waves(n: int = 64) -> tuple[Tensor, Tensor]:
    """One input column and a curve of it, both of shape (n, 1)."""
    x = torch.rand(n, 1) * 4 - 2
    return x, torch.sin(2 * x) + 0.05 * torch.randn(n, 1)


def houses(n: int = 64) -> tuple[Tensor, Tensor]:
    """Six columns of features, and a price of shape (n,) with mean 0 and a standard deviation near 1."""
    x = torch.randn(n, 6)
    price = 0.6 * x[:, 0] - 0.5 * x[:, 1] + 0.4 * x[:, 2] * x[:, 3] + 0.4 * x[:, 4].tanh()
    return x, price + 0.1 * torch.randn(n)


def stripes(n: int = 32, size: int = 12, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Images with a horizontal, a vertical or a diagonal line at a random place."""
    labels = torch.randint(3, (n,))
    where = torch.randint(size, (n,))
    x = 0.25 * torch.randn(n, channels, size, size)
    for i in range(n):
        if labels[i] == 0:
            x[i, :, where[i]] += 1.5
        elif labels[i] == 1:
            x[i, :, :, where[i]] += 1.5
        else:
            x[i] += 1.5 * torch.eye(size).roll(int(where[i]), 0)
    return x, labels


def chars(n: int = 12, length: int = 24) -> tuple[Tensor, Tensor]:
    """Pieces of a text, and the characters that come next."""
    start = torch.randint(len(ENCODED) - length - 1, (n, 1))
    piece = ENCODED[start + torch.arange(length + 1)]
    return piece[:, :-1], piece[:, 1:]


def melodies(n: int = 24, length: int = 10) -> tuple[Tensor, Tensor]:
    """Noisy tones of shape (n, length, 3), which rise, fall or stay."""
    labels = torch.randint(3, (n,))
    slope = (labels - 1).float()[:, None] * torch.linspace(-1, 1, length)
    return torch.stack([slope, slope.cos(), torch.ones_like(slope)], 2) + 0.3 * torch.randn(n, length, 3), labels


def dense(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU between."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class SmallCNN(nn.Module):
    def __init__(self, channels: int = 1, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.amax((2, 3)))


class CausalAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.c_attn(x).split(c, 2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.c_proj((weights @ v).transpose(1, 2).reshape(b, t, c))


class GPTBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim)
        self.attn: nn.Module = CausalAttention(dim, heads)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class TinyGPT(nn.Module):
    """Predicts characters of `TEXT`."""

    def __init__(self, dim: int = 32, heads: int = 4, depth: int = 2, context: int = 32) -> None:
        super().__init__()
        self.wte = nn.Embedding(len(CHARS), dim)
        self.wpe = nn.Embedding(context, dim)
        self.h = nn.ModuleList(GPTBlock(dim, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, len(CHARS), bias=False)

    def forward(self, idx: Any) -> Any:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class SequenceClassifier(nn.Module):
    """An LSTM or GRU over melodies."""

    def __init__(self, cell: Any = nn.LSTM, hidden: int = 16) -> None:
        super().__init__()
        self.rnn = cell(3, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 3)

    def forward(self, x: Any) -> Any:
        states, _ = self.rnn(x)
        return self.out(states[:, -1])
