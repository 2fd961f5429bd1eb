"""Weights that start too large, too small, all alike or in the dead range of an activation."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.held_out._shared import SmallCNN, TinyGPT, blobs, chars, dense, houses, melodies, stripes
from tests.diagnostics.corpus.register import planted


@planted("initialization is too large or too small", "", "0", "2", "4", "1", "3", "6")
def standard_normal_weights() -> Setup:
    """nn.init.normal_(weight) with its default std=1 in layers of width 128 (DeepFD: wrong initialization; forum)."""
    model = dense(10, 128, 128, 128, 3)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(10):
            x, y = blobs()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class DeepTanh(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 32), *(nn.Linear(32, 32) for _ in range(7))])
        self.out = nn.Linear(32, 1)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(x).squeeze(1)


@planted("initialization is too large or too small", "", *(f"layers.{i}" for i in range(8)), "out", "layers")
def deep_tanh_with_tiny_weights() -> Setup:
    """std=0.01 in eight layers of width 32: signals and gradients shrink in each (AUTOTRAINER: vanishing gradient)."""
    model = DeepTanh()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        for _ in range(15):
            x, y = houses()
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("weights are zero or all alike", "", "0", "2", "4")
def all_weights_zero() -> Setup:
    """All weights and biases start at zero, and only the last bias gets a gradient (DeepFD; forum)."""
    model = dense(10, 32, 32, 3)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(12):
            x, y = blobs()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class TwoLayerNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 40)
        self.output = nn.Linear(40, 1)
        nn.init.constant_(self.hidden.weight, 0.1)
        nn.init.constant_(self.hidden.bias, 0.1)
        nn.init.constant_(self.output.weight, 0.1)

    def forward(self, x: Any) -> Any:
        return self.output(torch.sigmoid(self.hidden(x))).squeeze(-1)


@planted("weights are zero or all alike", "hidden", "", "output")
def constant_weights() -> Setup:
    """Weights start at one constant, so all hidden units stay the same unit (forum)."""
    model = TwoLayerNet()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(20):
            x, y = houses()
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("units are dead or saturated", "", "features.0", "features.1", "features.2", "features.3", "features")
def biases_at_minus_ten() -> Setup:
    """Biases of -10 before ReLU: no unit ever answers (AUTOTRAINER: dying ReLU)."""

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4)
            )
            self.classifier = nn.Linear(72, 3)
            for module in self.features:
                if isinstance(module, nn.Conv2d):
                    nn.init.constant_(module.bias, -10.0)  # type: ignore[arg-type]

        def forward(self, x: Any) -> Any:
            return self.classifier(self.features(x).flatten(1))

    model = Detector()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(10):
            x, y = stripes()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("initialization is too large or too small", "", "wte", "lm_head", "h.0", "ln_f")
def tied_embedding_with_std_one() -> Setup:
    """The output layer shares the embedding's weight, which has nn.Embedding's default std=1: the first loss is far
    above chance (forum, of GPT-2 implementations)."""
    model = TinyGPT(dim=64)
    model.lm_head.weight = model.wte.weight
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def run() -> None:
        for _ in range(8):
            x, y = chars()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class SigmoidStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(8):
            layers += [nn.Linear(10 if i == 0 else 24, 24), nn.Sigmoid()]
        self.body = nn.Sequential(*layers)
        self.top = nn.Linear(24, 3)

    def forward(self, x: Any) -> Any:
        return self.top(self.body(x))


@planted("gradients vanish or explode", "", "body", "body.0", "body.2", "body.4")
def eight_sigmoid_layers() -> Setup:
    """A deep network of sigmoids with the default initialization: gradients shrink by a factor of ten and more in
    each layer (AUTOTRAINER: vanishing gradient)."""
    model = SigmoidStack()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        for _ in range(12):
            x, y = blobs()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("initialization is too large or too small", "", "rnn", "out", hard=True)
def recurrent_weights_of_spectral_radius_three() -> Setup:
    """The recurrent matrix of a tanh RNN is three times an orthogonal one: states saturate over time."""

    class Elman(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.RNN(3, 32, batch_first=True)
            self.out = nn.Linear(32, 3)
            recurrent: Any = self.rnn.weight_hh_l0
            nn.init.orthogonal_(recurrent, gain=3.0)

        def forward(self, x: Any) -> Any:
            return self.out(self.rnn(x)[0][:, -1])

    model = Elman()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(12):
            x, y = melodies(length=20)
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("initialization is too large or too small", "", "fc", hard=True)
def head_with_std_three() -> Setup:
    """Only the classifier is initialized with std=3, so the first loss is several times log(3)."""
    model = SmallCNN(width=16)
    nn.init.normal_(model.fc.weight, std=3.0)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(10):
            x, y = stripes()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run
