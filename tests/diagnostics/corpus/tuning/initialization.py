"""Weights that start out wrong."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Run, Setup
from tests.diagnostics.corpus.register import planted
from tests.diagnostics.corpus.tuning._data import LETTERS, bars, blobs, digits, line, loader, text, waves


def epoch(model: nn.Module, inputs: Tensor, labels: Tensor, lr: float = 1e-3) -> Run:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    criterion = nn.CrossEntropyLoss()

    def run() -> None:
        for x, y in loader(inputs, labels):
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()

    return run


class Mnist(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        for fc in (self.fc1, self.fc2, self.fc3):
            nn.init.normal_(fc.weight)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


@planted("initialization is too large or too small", "", "fc1", "fc2", "fc3")
def standard_normal_weights() -> Setup:
    """nn.init.normal_(weight) has std 1 whatever the width: the loss is 100 times chance (DeepFD)."""
    model = Mnist()
    return model, epoch(model, *bars(192))


@planted("weights are zero or all alike", "", "0", "2")
def constant_weights() -> Setup:
    """All weights start at 0.01, so all units of a layer stay copies of each other (DeepFD; forum: symmetry)."""
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))

    def init_weights(m: nn.Module) -> None:
        if isinstance(m, nn.Linear):
            nn.init.constant_(m.weight, 0.01)
            nn.init.zeros_(m.bias)

    model.apply(init_weights)
    return model, epoch(model, *blobs(192), lr=3e-3)


class ZeroConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 4)
        for p in self.parameters():
            nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.fc(x.mean((2, 3)))


@planted("weights are zero or all alike", "", "conv1", "conv2", "fc")
def zeros_everywhere() -> Setup:
    """Every parameter starts at 0: only the last bias gets a gradient (forum; DeepFD: initialization)."""
    model = ZeroConv()
    return model, epoch(model, *bars(192))


class DeepTanh(nn.Module):
    def __init__(self, depth: int = 8, std: float = 0.01) -> None:
        super().__init__()
        self.stack = nn.ModuleList(nn.Linear(48, 48) for _ in range(depth))
        self.inp, self.out = nn.Linear(10, 48), nn.Linear(48, 3)
        for layer in self.stack:
            nn.init.normal_(layer.weight, std=std)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Any:
        x = torch.tanh(self.inp(x))
        for layer in self.stack:
            x = torch.tanh(layer(x))
        return self.out(x)


@planted("initialization is too large or too small", "", "stack", "stack.0", "stack.1", "stack.7", "out")
def std_of_001_in_eight_layers() -> Setup:
    """N(0, 0.01) in eight layers of 48 units: activations fade from layer to layer (Glorot and Bengio; forum)."""
    model = DeepTanh()
    return model, epoch(model, *blobs(192))


@planted("units are dead or saturated", "", "stack", *(f"stack.{i}" for i in range(4)))
def tanh_with_large_weights() -> Setup:
    """N(0, 1) in eight tanh layers: nearly all units are at -1 or 1 (Glorot and Bengio; AUTOTRAINER)."""
    model = DeepTanh(4, 2.0)
    return model, epoch(model, *blobs(192))


@planted("units are dead or saturated", "", "hidden", "act", "hidden2", "act2")
def relu_after_very_negative_biases() -> Setup:
    """Biases start at -10, meant for the output of a rare class alone: no ReLU ever fires (AUTOTRAINER: dying ReLU)."""
    model = nn.Sequential()
    for name, width, outputs in (("hidden", 10, 32), ("hidden2", 32, 32), ("top", 32, 3)):
        layer = nn.Linear(width, outputs)
        nn.init.constant_(layer.bias, -10.0)
        model.add_module(name, layer)
        if name != "top":
            model.add_module(name.replace("hidden", "act"), nn.ReLU())
    return model, epoch(model, *blobs(192))


class GPT(nn.Module):
    """A decoder whose embedding, tied to the head, keeps PyTorch's N(0, 1)."""

    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(LETTERS, dim),
            "wpe": nn.Embedding(16, dim),
            "h": nn.ModuleList(
                nn.TransformerEncoderLayer(dim, 4, 128, 0.0, batch_first=True, norm_first=True) for _ in range(2)
            ),
            "ln_f": nn.LayerNorm(dim),
        })  # fmt: skip
        self.lm_head = nn.Linear(dim, LETTERS, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight  # type: ignore[assignment]

    def forward(self, ids: Tensor) -> Any:
        parts: Any = self.transformer
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = parts["wte"](ids) + parts["wpe"](torch.arange(ids.shape[1]))
        for block in parts["h"]:
            x = block(x, src_mask=mask)
        return self.lm_head(parts["ln_f"](x))


@planted("initialization is too large or too small", "", "lm_head", "transformer.wte")
def tied_embedding_with_std_one() -> Setup:
    """Tied to the head, the embedding's N(0, 1) gives logits of std 8 and a first loss far above chance (forum)."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def run() -> None:
        for _ in range(8):
            x, y = text(6)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 128)
        self.up1 = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.up2 = nn.Conv2d(8, 1, 3, padding=1)
        nn.init.uniform_(self.fc.weight)
        nn.init.uniform_(self.up1.weight)
        nn.init.uniform_(self.up2.weight)

    def forward(self, z: Tensor) -> Any:
        x = F.relu(self.fc(z)).view(-1, 8, 4, 4)
        return torch.sigmoid(self.up2(F.relu(self.up1(x))))


@planted("initialization is too large or too small", "", "1", "1.fc", "1.up1", "1.up2")
def uniform_from_zero_to_one() -> Setup:
    """nn.init.uniform_ draws from [0, 1): all weights are positive, and the sigmoid saturates (forum)."""
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
    model = nn.Sequential(encoder, Decoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for (x,) in loader(digits(160)):
            loss = F.binary_cross_entropy(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class ElmanNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(1, 24, batch_first=True, nonlinearity="relu")
        self.fc = nn.Linear(24, 1)
        nn.init.xavier_uniform_(self.rnn.weight_hh_l0, gain=4.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Any:
        out, _ = self.rnn(x)
        return self.fc(out[:, -1]).squeeze(-1)


@planted("gradients vanish or explode", "", "rnn")
def relu_rnn_with_a_large_recurrent_matrix() -> Setup:
    """The recurrent matrix of a ReLU RNN has gain 4: 20 steps multiply state and gradient by millions (forum)."""
    model = ElmanNet()
    x, y = waves(96)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for xb, yb in loader(x, y):
            optimizer.zero_grad()
            F.mse_loss(model(xb), yb).backward()
            optimizer.step()

    return model, run


@planted("initialization is too large or too small", "", "2", hard=True)
def one_layer_initialized_ten_times_too_large() -> Setup:
    """std = sqrt(fan_in) / fan_out by a slip, in one layer of four (DeepFD: initialization)."""
    model = nn.Sequential(
        nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    )
    layer: Any = model[2]
    nn.init.normal_(layer.weight, std=64**0.5 / 32 * 6)
    x, y = line(192)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        for xb, yb in loader(x, y):
            optimizer.zero_grad()
            F.mse_loss(model(xb).squeeze(1), yb).backward()
            optimizer.step()

    return model, run


class RGBNet(nn.Module):
    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 12, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(12, 12, 3, padding=1)
        self.fc = nn.Linear(12 * 16, 4)

    def forward(self, x: Tensor) -> Any:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return self.fc(F.relu(self.conv2(x)).flatten(1))


@planted("weights are zero or all alike", "conv1", "", hard=True)
def filters_averaged_over_the_wrong_axis() -> Setup:
    """To take gray images, pretrained filters are averaged over the outputs as well, and all are alike (forum)."""
    model = RGBNet()
    old = model.conv1
    model.conv1 = nn.Conv2d(1, 12, 3, padding=1, bias=False)
    model.conv1.weight.data = old.weight.data.mean((0, 1), keepdim=True).repeat(12, 1, 1, 1)
    return model, epoch(model, *bars(192), lr=1e-3)


class Ensemble(nn.Module):
    def __init__(self, members: int = 3) -> None:
        super().__init__()
        member = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 3))
        self.members = nn.ModuleList(copy.deepcopy(member) for _ in range(members))

    def forward(self, x: Tensor) -> Any:
        return torch.stack([member(x) for member in self.members]).mean(0)


@planted(
    "weights are copies", "", "members", *(f"members.{i}" for i in range(3)), *(f"members.{i}.0" for i in range(3))
)
def ensemble_of_clones() -> Setup:
    """The members of an ensemble are deep copies of one, see the same batches, and so remain the same (forum)."""
    model = Ensemble()
    return model, epoch(model, *blobs(192), lr=3e-3)
