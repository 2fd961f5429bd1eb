"""Computation graphs that are cut, modules that never run, and frozen parameters."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.held_out._shared import (
    GPTBlock,
    SequenceClassifier,
    SmallCNN,
    blobs,
    dense,
    houses,
    melodies,
    stripes,
    waves,
)
from tests.diagnostics.corpus.register import planted


class FrozenByAccident(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = dense(10, 32, 32)
        self.relu = nn.ReLU()
        self.head = nn.Linear(32, 3)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            features = self.relu(self.backbone(x))
        return self.head(features)


@planted("graph is cut", "backbone", "backbone.0", "backbone.2", "", "relu", "head")
def no_grad_left_in_forward() -> Setup:
    """torch.no_grad() around the backbone stayed in forward, though the backbone should train (forum)."""
    model = FrozenByAccident()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(12):
            x, y = blobs()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class TwoStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(3))
        self.mlp = nn.Sequential(nn.Linear(8 * 16, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x: Any) -> Any:
        features = self.conv(x)
        features = torch.tensor(features.detach().flatten(1).tolist())
        return self.mlp(features)


@planted("graph is cut", "conv", "conv.0", "", "mlp", "mlp.0")
def torch_tensor_of_features() -> Setup:
    """torch.tensor(...) makes new values of the features, without a graph (forum)."""
    model = TwoStage()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(10):
            x, y = stripes()
            opt.zero_grad()
            loss = nn.CrossEntropyLoss()(model(x), y)
            loss.backward()
            opt.step()

    return model, run


class SmoothedRegressor(nn.Module):
    """Smooths its hidden features with NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 32)
        self.mid = nn.Linear(32, 32)
        self.outer = nn.Linear(32, 1)

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.mid(torch.tanh(self.inner(x))))
        kernel = np.array([0.25, 0.5, 0.25])
        smooth = np.apply_along_axis(np.convolve, 1, h.detach().numpy(), kernel, "same")
        return self.outer(torch.from_numpy(smooth).float())


@planted("graph is cut", "inner", "mid", "", "outer", "tanh")
def numpy_in_the_middle() -> Setup:
    """Features go through NumPy, and gradients end there (forum)."""
    model = SmoothedRegressor()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(15):
            x, y = waves(48)
            opt.zero_grad()
            F.mse_loss(model(x), y).backward()
            opt.step()

    return model, run


class HardRouter(nn.Module):
    """Each sample goes to the expert that the gate prefers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(10, 3)
        self.experts = nn.ModuleList([dense(10, 16, 3) for _ in range(3)])

    def forward(self, x: Any) -> Any:
        choice = F.one_hot(self.gate(x).argmax(1), 3).float()
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return (choice.unsqueeze(2) * outputs).sum(1)


@planted("graph is cut", "gate", "")
def argmax_of_the_gate() -> Setup:
    """The gate of a mixture of experts decides by argmax alone, which has no gradient (forum)."""
    model = HardRouter()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            x, y = blobs()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 32)
        self.blocks = [nn.Linear(32, 32) for _ in range(3)]
        self.last = nn.Linear(32, 1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.first(x))
        for block in self.blocks:
            x = F.relu(block(x))
        return self.last(x).squeeze(1)


@planted("parameters are not registered", "", "blocks", "blocks.0", "blocks[0]")
def layers_in_a_python_list() -> Setup:
    """Layers stand in a list instead of nn.ModuleList, so model.parameters() has none of them (forum)."""
    model = Hidden()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            x, y = houses()
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("parameters are frozen", "", "conv1", "bn1", "conv2", "bn2")
def unfreezing_forgotten() -> Setup:
    """All layers but the head are frozen for a warm-up of the head, and stay so: the network starts from random
    weights (forum)."""
    model = SmallCNN()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("fc")
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(10):
            x, y = stripes()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class FeaturePyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.stage1 = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU())
        self.stage3 = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU())
        self.classify = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.stem(x))
        c1 = self.stage1(x)
        c2 = self.stage2(c1)
        self.stage3(c2)
        return self.classify(c2.mean((2, 3)))


@planted("graph is cut", "stage3", "stage3.0", "")
def output_of_the_wrong_stage() -> Setup:
    """The head reads stage 2, though stage 3 was computed: its result goes nowhere (forum)."""
    model = FeaturePyramid()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(12):
            x, y = stripes()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class WideAndDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(6, 1)
        self.deep = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.deep_out = nn.Linear(32, 1)

    def forward(self, x: Any) -> Any:
        return self.wide(x).squeeze(1)


@planted("module never ran", "deep", "deep_out", "")
def branch_never_called() -> Setup:
    """forward was cut down while debugging, and no longer calls the deep branch."""
    model = WideAndDeep()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(20):
            x, y = houses()
            loss = F.smooth_l1_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class StackedBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 24)
        self.block0 = GPTBlock(24, 2)
        self.block1 = GPTBlock(24, 2)
        self.block2 = GPTBlock(24, 2)
        self.out = nn.Linear(24, 3)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        x = self.block0(x)
        y = self.block1(x)
        y = x + (self.block2(y) - x).data
        return self.out(y[:, -1])


@planted("graph is cut", "block1", "block2", "", hard=True)
def data_of_a_residual() -> Setup:
    """.data of what the last two blocks add: the path around them keeps the loss falling (forum)."""
    model = StackedBlocks()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(12):
            x, y = melodies()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("loss does not depend on the model", "", "out", hard=True)
def loss_made_again_from_its_value() -> Setup:
    """Losses are collected with .item(), averaged, and made a tensor with requires_grad=True again (forum)."""
    model = SequenceClassifier(nn.GRU)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(8):
            values = []
            for _ in range(3):
                x, y = melodies(8)
                values.append(F.cross_entropy(model(x), y).item())
            loss = torch.tensor(values, requires_grad=True).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run
