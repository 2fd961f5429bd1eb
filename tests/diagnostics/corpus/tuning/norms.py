"""Norms over wrong axes or with wrong settings."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.register import planted
from tests.diagnostics.corpus.tuning._data import bars, blobs, counting, line, loader


class SequenceTagger(nn.Module):
    """LayerNorm normalizes over time as well."""

    def __init__(self, length: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 24)
        self.gru = nn.GRU(24, 24, batch_first=True)
        self.layer_norm = nn.LayerNorm([length, 24])
        self.out = nn.Linear(24, 12)

    def forward(self, ids: Tensor) -> Any:
        return self.out(self.layer_norm(self.gru(self.embed(ids))[0]))


@planted("norm over the wrong axes", "layer_norm", "")
def layer_norm_over_time_and_width() -> Setup:
    """nn.LayerNorm([time, width]) in a model of the next token normalizes each step by later ones (forum)."""
    model = SequenceTagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(12):
            ids = counting(16)
            optimizer.zero_grad()
            F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:]).backward()
            optimizer.step()

    return model, run


class SmallResNet(nn.Module):
    def __init__(self, eps: float = 1e-5, bias: bool = False) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, padding=1, bias=bias), nn.BatchNorm2d(8, eps=eps)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=bias), nn.BatchNorm2d(8, eps=eps)
        self.linear = nn.Linear(8 * 16, 4)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.bn1(self.conv1(x)))
        x = x + F.relu(self.bn2(self.conv2(x)))
        return self.linear(F.avg_pool2d(x, 2).flatten(1))


@planted("norm has a wrong eps", "bn1", "bn2")
def eps_and_momentum_swapped() -> Setup:
    """nn.BatchNorm2d(8, 0.99) as in TensorFlow: the second argument is eps, not the momentum (forum)."""
    model = SmallResNet(eps=0.99)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def run() -> None:
        for x, y in loader(*bars(192)):
            optimizer.zero_grad()
            F.cross_entropy(model(0.1 * x), y).backward()
            optimizer.step()

    return model, run


@planted("bias before a norm", "conv1", "conv2", "bn1", "bn2")
def biases_before_batch_norm() -> Setup:
    """Convolutions before BatchNorm have biases that its mean takes away again (forum: bias=False before BatchNorm)."""
    model = SmallResNet(bias=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def run() -> None:
        for x, y in loader(*bars(192)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


@planted("running statistics are stale", "", "1", "4")
def running_statistics_hardly_move() -> Setup:
    """momentum=0.001, as 1 - 0.999: PyTorch's is the weight of the new batch, so eval uses mean 0, var 1 (forum)."""
    model = nn.Sequential(
        nn.Linear(10, 32), nn.BatchNorm1d(32, momentum=0.001), nn.ReLU(),
        nn.Linear(32, 32), nn.BatchNorm1d(32, momentum=0.001), nn.ReLU(), nn.Linear(32, 3),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = blobs(240)
    x = 8 * x + 20

    def run() -> None:
        for _ in range(2):
            model.train()
            for xb, yb in loader(x, y):
                optimizer.zero_grad()
                F.cross_entropy(model(xb), yb).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(x), y)

    return model, run


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(6, 8)
        self.instance_norm = nn.LayerNorm(1)
        self.regress = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Any:
        h = self.lift(x).unsqueeze(-1)
        return self.regress(self.instance_norm(h).squeeze(-1)).squeeze(-1)


@planted("norm over the wrong axes", "instance_norm", "")
def layer_norm_over_an_axis_of_one() -> Setup:
    """The norm runs over a last axis of size 1, so all that it returns is its bias (forum)."""
    model = PointNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = line(192)

    def run() -> None:
        for xb, yb in loader(x, y):
            optimizer.zero_grad()
            F.mse_loss(model(xb), yb).backward()
            optimizer.step()

    return model, run


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 16, padding_idx=12)
        self.conv = nn.Conv1d(16, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm1d(16)
        self.fc = nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> Any:
        mask = (ids != 12).unsqueeze(1)
        h = self.bn(self.conv(self.embed(ids).transpose(1, 2)) * mask).relu() * mask
        return self.fc(h.sum(-1) / mask.sum(-1))


@planted("norm over the wrong axes", "bn", "", hard=True)
def batch_norm_over_padding() -> Setup:
    """BatchNorm over (batch, time) counts padding, four fifths of each batch, into mean and variance (forum)."""
    model = Padded()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(12):
            ids = counting(16, 20)
            lengths = torch.randint(3, 6, (16, 1))
            labels = ((ids[:, 1] - ids[:, 0]) % 12) - 1
            ids = ids.masked_fill(torch.arange(20) >= lengths, 12)
            optimizer.zero_grad()
            F.cross_entropy(model(ids), labels).backward()
            optimizer.step()

    return model, run


class PreNormStack(nn.Module):
    def __init__(self, width: int = 32, depth: int = 6) -> None:
        super().__init__()
        self.inp = nn.Linear(10, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, width), nn.ReLU()) for _ in range(depth)
        )
        self.out = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.inp(x)
        for block in self.blocks:
            x = 4 * x + block(x)
        return self.out(x)


@planted("residual stream grows", "", *(f"blocks.{i}" for i in range(6)), "out", "blocks")
def skip_path_multiplied_by_four() -> Setup:
    """The skip path is scaled instead of the branch, and six blocks multiply the stream by 4096 (own variation)."""
    model = PreNormStack()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for x, y in loader(*blobs(160)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run
