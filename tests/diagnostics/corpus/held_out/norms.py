"""Norms over wrong axes, with a wrong eps, or with stale statistics."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.held_out._shared import CHARS, SmallCNN, chars, houses, melodies, stripes
from tests.diagnostics.corpus.register import planted


class NormOverTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(CHARS), 24)
        self.lstm = nn.LSTM(24, 24, batch_first=True)
        self.norm = nn.LayerNorm([24, 24])
        self.head = nn.Linear(24, len(CHARS))

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.lstm(self.embed(x))[0]))


@planted("norm over the wrong axes", "norm", "")
def layer_norm_over_time_and_features() -> Setup:
    """nn.LayerNorm([time, features]) in a language model: its statistics include later positions (forum)."""
    model = NormOverTime()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(12):
            x, y = chars()
            loss = F.cross_entropy(model(x).transpose(1, 2), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class GroupedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(6, 32)
        self.gn = nn.GroupNorm(32, 32)
        self.linear2 = nn.Linear(32, 32)
        self.linear3 = nn.Linear(32, 1)

    def forward(self, x: Any) -> Any:
        x = self.gn(F.relu(self.linear1(x)))
        return self.linear3(F.relu(self.linear2(x))).squeeze(1)


@planted("norm over the wrong axes", "gn", "")
def one_channel_per_group() -> Setup:
    """nn.GroupNorm(32, 32) of features without a spatial extent: every value is divided by itself, nothing is left."""
    model = GroupedNet()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            x, y = houses()
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("norm has a wrong eps", "bn1", "bn2", "")
def batch_norm_momentum_as_eps() -> Setup:
    """nn.BatchNorm2d(width, 100.0): the second argument is eps, not the momentum; activations shrink tenfold."""
    model = SmallCNN()
    model.bn1 = nn.BatchNorm2d(8, 100.0)
    model.bn2 = nn.BatchNorm2d(16, 100.0)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def run() -> None:
        for _ in range(12):
            x, y = stripes()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("running statistics are stale", "bn1", "bn2", "")
def statistics_loaded_from_elsewhere() -> Setup:
    """A network is evaluated with running statistics which another model left: those of unscaled images (forum)."""
    model = SmallCNN()
    other = SmallCNN()
    with torch.no_grad():
        for _ in range(50):
            other(stripes()[0] * 60 + 120)
    buffers = {name: value for name, value in other.state_dict().items() if "running" in name or "tracked" in name}
    model.load_state_dict(buffers, strict=False)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        model.eval()
        with torch.no_grad():
            F.cross_entropy(model(stripes()[0]), stripes()[1])
        model.train()
        for _ in range(3):
            x, y = stripes()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            model(stripes()[0])

    return model, run


class UnnormedResidual(nn.Module):
    def __init__(self, depth: int = 12) -> None:
        super().__init__()
        self.stem = nn.Linear(30, 32)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(depth)
        )
        self.head = nn.Linear(32, 3)
        for block in self.blocks:
            for layer in block.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
                    layer.weight.data *= 1.6

    def forward(self, x: Any) -> Any:
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@planted("residual stream grows", "", "blocks", *(f"blocks.{i}" for i in range(12)), "head")
def twelve_residual_blocks_without_norm() -> Setup:
    """Residual blocks without norms and with He weights: the stream doubles and more in each block."""
    model = UnnormedResidual()
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)

    def run() -> None:
        for _ in range(8):
            x, y = melodies(32)
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class PaddedPool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16, padding_idx=0)
        self.conv = nn.Conv1d(16, 24, 3, padding=1)
        self.bn = nn.BatchNorm1d(24)
        self.fc = nn.Linear(24, 2)

    def forward(self, tokens: Any) -> Any:
        x = self.bn(self.conv(self.words(tokens).transpose(1, 2)))
        keep = (tokens != 0).float().unsqueeze(1)
        return self.fc((F.relu(x) * keep).sum(2) / keep.sum(2))


@planted("norm over the wrong axes", "bn", "", hard=True)
def batch_norm_over_padding() -> Setup:
    """BatchNorm1d takes its statistics over padded positions too, which are most of the batch (forum)."""
    model = PaddedPool()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(12):
            lengths = torch.randint(3, 8, (24, 1))
            tokens = torch.randint(1, 30, (24, 24)) * (torch.arange(24) < lengths)
            labels = (tokens == 7).any(1).long() | (tokens[:, 0] > 15).long()
            loss = F.cross_entropy(model(tokens), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run
