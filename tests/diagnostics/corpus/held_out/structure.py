"""Networks whose layers are put together wrongly."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.held_out._shared import (
    CHARS,
    GPTBlock,
    blobs,
    chars,
    dense,
    houses,
    melodies,
    stripes,
    waves,
)
from tests.diagnostics.corpus.register import planted


@planted("no nonlinearity between layers", "", "2", "0", "1", "3")
def deep_linear_network() -> Setup:
    """Four linear layers in a row without any activation (DeepFD: missing activation)."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(20):
            x, y = waves()
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class PlainConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(8 * 36, 32)
        self.fc2 = nn.Linear(32, 3)

    def forward(self, x: Any) -> Any:
        x = self.conv1(x)
        x = self.pool(F.relu(self.conv2(x)))
        x = self.fc1(x.flatten(1))
        return self.fc2(x)


@planted("no nonlinearity between layers", "", "fc1", "fc2", "conv1", "conv2")
def activations_forgotten_here_and_there() -> Setup:
    """No activation between the two convolutions, nor between the two linear layers (DeepFD; forum)."""
    model = PlainConvNet()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(12):
            x, y = stripes()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class RepeatedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc_in = nn.Linear(10, 32)
        self.fc_a = nn.Linear(32, 32)
        self.fc_b = nn.Linear(32, 32)
        self.fc_c = nn.Linear(32, 32)
        self.fc_out = nn.Linear(32, 3)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.fc_in(x))
        x = torch.relu(self.fc_a(x))
        x = torch.relu(self.fc_b(x))
        x = torch.relu(self.fc_b(x))
        return self.fc_out(x)


@planted("module runs twice", "fc_b", "fc_c", "")
def copied_line_not_edited() -> Setup:
    """forward calls fc_b twice and fc_c never: a copied line (forum)."""
    model = RepeatedLayer()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(15):
            x, y = blobs()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(3, 24)
        self.layers = nn.ModuleList(GPTBlock(24, 2) for _ in range(5))
        self.head = nn.Linear(24, 3)

    def forward(self, x: Any) -> Any:
        x = self.inp(x)
        for i in range(1, len(self.layers) - 1):
            x = self.layers[i](x)
        return self.head(x.mean(1))


@planted("module never ran", "layers.0", "layers.4", "layers", "")
def range_skips_first_and_last() -> Setup:
    """The loop over layers is off by one at both ends."""
    model = Stack()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(10):
            x, y = melodies()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class BasicBlock(nn.Module):
    def __init__(self, channels: int, shortcut: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = shortcut

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.shortcut:
            y = y + x
        return F.relu(y)


@planted("residual connection is missing", "3", "")
def one_block_without_shortcut() -> Setup:
    """One of five residual blocks does not add its input."""
    blocks = [BasicBlock(8, shortcut=i != 2) for i in range(5)]
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), *blocks, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def run() -> None:
        for _ in range(8):
            x, y = stripes()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class TimeFirst(nn.Module):
    """A GRU that wants (time, batch, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 24)
        self.fc = nn.Linear(24, 3)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        states, _ = self.gru(x.view(t, b, c))
        return self.fc(states[-1])


@planted("axes are mixed up", "", "gru", "view", "fc")
def view_instead_of_transpose() -> Setup:
    """x.view(t, b, c) instead of x.transpose(0, 1): every sequence gets steps of others (forum)."""
    model = TimeFirst()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(15):
            x, y = melodies()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class BatchFirstForgotten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(3, 24)
        self.pos = nn.Parameter(0.3 * torch.randn(10, 24))
        layer = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0)
        self.transformer = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.cls = nn.Linear(24, 3)

    def forward(self, x: Any) -> Any:
        return self.cls(self.transformer(self.proj(x) + self.pos).mean(1))


@planted("axes are mixed up", "", "transformer", "transformer.layers.0", "transformer.layers.0.self_attn")
def batch_first_forgotten() -> Setup:
    """nn.TransformerEncoderLayer without batch_first=True: samples attend to one another (forum)."""
    model = BatchFirstForgotten()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(12):
            x, y = melodies()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class SharedStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(len(CHARS), 24)
        self.position = nn.Parameter(0.1 * torch.randn(24, 24))
        self.blocks = nn.ModuleList([GPTBlock(24, 2)] * 4)
        self.unembed = nn.Linear(24, len(CHARS))

    def forward(self, x: Any) -> Any:
        x = self.token(x) + self.position[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.unembed(x)


@planted("weights are tied by mistake", "", "blocks", "blocks.0", "blocks.1", "blocks.2", "blocks.3")
def one_block_four_times() -> Setup:
    """nn.ModuleList([block] * 4) has one block four times (forum)."""
    model = SharedStack()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(8):
            x, y = chars()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class HeavyDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin1 = nn.Linear(6, 64)
        self.drop = nn.Dropout(0.95)
        self.lin2 = nn.Linear(64, 32)
        self.lin3 = nn.Linear(32, 1)

    def forward(self, x: Any) -> Any:
        x = self.drop(F.relu(self.lin1(x)))
        return self.lin3(F.relu(self.lin2(x))).squeeze(-1)


@planted("dropout in the wrong place", "drop", "")
def keep_probability_as_dropout() -> Setup:
    """nn.Dropout(0.95), where 0.95 was the probability to keep (forum; another framework's convention)."""
    model = HeavyDropout()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(20):
            x, y = houses()
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class AudioNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 16, 3, padding=1)
        self.hidden = nn.Linear(160, 32)
        self.final = nn.Linear(32, 3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.conv(x.transpose(1, 2))).flatten(1)
        x = F.relu(self.hidden(x))
        return self.dropout(self.final(x))


@planted("dropout in the wrong place", "dropout", "", "final")
def dropout_after_the_last_layer() -> Setup:
    """Dropout on the logits (forum)."""
    model = AudioNet()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(15):
            x, y = melodies(32)
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class MergedHeads(nn.Module):
    def __init__(self, dim: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        q, k, v = self.in_proj(self.norm(x)).chunk(3, 2)
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out_proj(y.reshape(b, t, c))


class MergedLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARS), 24)
        self.position = nn.Embedding(24, 24)
        self.attention = MergedHeads()
        self.ff = dense(24, 96, 24)
        self.output = nn.Linear(24, len(CHARS))

    def forward(self, x: Any) -> Any:
        x = self.embedding(x) + self.position(torch.arange(x.shape[1]))
        x = self.attention(x)
        return self.output(x + self.ff(x))


@planted("axes are mixed up", "attention", "attention.out_proj", "", "attention.reshape", hard=True)
def heads_merged_without_transpose() -> Setup:
    """(b, heads, t, d).reshape(b, t, c) without transposing back: a position gets parts of others, later ones too
    (forum)."""
    model = MergedLM()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(12):
            x, y = chars()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class Standardizing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 32)
        self.second = nn.Linear(32, 32)
        self.third = nn.Linear(32, 1)

    def forward(self, x: Any) -> Any:
        h = F.relu(self.first(x))
        h = (h - h.mean(0)) / (h.std(0) + 1e-5)
        h = F.relu(self.second(h))
        return self.third(h).squeeze(1)


@planted("axes are mixed up", "", "first", "second", hard=True)
def layer_norm_by_hand_over_the_batch() -> Setup:
    """A normalization written by hand uses dim=0, the batch, instead of the features, in evaluation too (forum)."""
    model = Standardizing()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            x, y = houses(32)
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            model(houses(16)[0])

    return model, run


class AutoencoderPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc_mean = nn.Linear(10, 4)
        self.enc_logvar = nn.Linear(10, 4)
        self.dec = dense(4, 32, 10)
        self.enc_logvar.weight = self.enc_mean.weight

    def forward(self, x: Any) -> Any:
        mu, logvar = self.enc_mean(x), self.enc_logvar(x)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


@planted("weights are tied by mistake", "", "enc_mean", "enc_logvar", hard=True)
def mean_and_variance_share_a_weight() -> Setup:
    """The layers of a VAE's mean and log variance were assigned one weight."""
    model = AutoencoderPair()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            x, _ = blobs()
            out, mu, logvar = model(x)
            kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1).mean()
            loss = (out - x).square().sum(1).mean() + 0.1 * kl
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run
