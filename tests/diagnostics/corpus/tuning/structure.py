"""Networks that are put together wrongly."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Run, Setup
from tests.diagnostics.corpus.register import planted
from tests.diagnostics.corpus.tuning._data import (
    LETTERS,
    bars,
    blobs,
    counting,
    digits,
    line,
    loader,
    text,
    two_classes,
)


def train(model: nn.Module, inputs: Tensor, labels: Tensor, lr: float = 3e-3, batch_size: int = 16) -> Run:
    """One epoch of classification."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def run() -> None:
        model.train()
        for x, y in loader(inputs, labels, batch_size=batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

    return run


@planted("no nonlinearity between layers", "", *(str(i) for i in range(4)))
def four_linear_layers() -> Setup:
    """A "deep" network of linear layers only (DeepFD: missing activation; forum)."""
    model = nn.Sequential(nn.Linear(10, 64), nn.Linear(64, 64), nn.Linear(64, 32), nn.Linear(32, 3))
    return model, train(model, *blobs(240))


class LinearAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2 = nn.Linear(64, 32), nn.Linear(32, 8)
        self.dec1, self.dec2 = nn.Linear(8, 32), nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Any:
        z = self.enc2(self.enc1(x))
        return torch.sigmoid(self.dec2(F.relu(self.dec1(z))))


@planted("no nonlinearity between layers", "enc1", "enc2", "")
def encoder_without_activation() -> Setup:
    """The decoder has a ReLU, the encoder's layers follow each other directly (DEFault: missing activation)."""
    model = LinearAutoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for (image,) in loader(digits(240).flatten(1), batch_size=20):
            loss = F.mse_loss(model(image), image)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class EncoderLayer(nn.Module):
    def __init__(self, dim: int = 32, residual: bool = True) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.residual = residual

    def forward(self, x: Tensor) -> Any:
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        y = self.ff(self.norm2(x))
        return x + y if self.residual else y


class PatchTransformer(nn.Module):
    def __init__(self, layers: list[nn.Module], repeats: int = 1, skip: int = -1) -> None:
        super().__init__()
        self.to_patches = nn.Conv2d(1, 32, 2, stride=2)
        self.pos = nn.Parameter(0.02 * torch.randn(1, 16, 32))
        self.encoder_layers = nn.ModuleList(layers)
        self.head = nn.Linear(32, 4)
        self.repeats, self.skip = repeats, skip

    def forward(self, image: Tensor) -> Any:
        x = self.to_patches(image).flatten(2).transpose(1, 2) + self.pos
        for i, layer in enumerate(self.encoder_layers):
            for _ in range(self.repeats if i == 1 else 1):
                if i != self.skip:
                    x = layer(x)
        return self.head(x.mean(1))


@planted("residual connection is missing", "encoder_layers.2", "encoder_layers.2.ff")
def third_block_without_residual() -> Setup:
    """One block of four returns the feed-forward network's output without adding its input (own variation)."""
    model = PatchTransformer([EncoderLayer(residual=i != 2) for i in range(4)])
    return model, train(model, *bars(128), lr=1e-3)


@planted("module runs twice", "encoder_layers.1")
def second_block_called_twice() -> Setup:
    """A line of forward was pasted twice, so one of four blocks runs two times (own variation)."""
    model = PatchTransformer([EncoderLayer() for _ in range(4)], repeats=2)
    return model, train(model, *bars(128), lr=1e-3)


@planted("module never ran", "encoder_layers.3", "")
def last_block_skipped() -> Setup:
    """An off-by-one in forward leaves out the last of four blocks (forum: unused parameters under DDP)."""
    model = PatchTransformer([EncoderLayer() for _ in range(4)], skip=3)
    return model, train(model, *bars(128), lr=1e-3)


@planted("weights are tied by mistake", "encoder_layers", "encoder_layers.0", "")
def list_times_three() -> Setup:
    """nn.ModuleList([layer] * 3) holds the same layer three times (forum: the Annotated Transformer's clones)."""
    model = PatchTransformer([EncoderLayer()] * 3)
    return model, train(model, *bars(128), lr=1e-3)


class ViewHeads(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.num_heads = heads
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Any:
        t, b, d = x.shape
        q, k, v = (part(x).view(b, self.num_heads, t, -1) for part in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.output(y.reshape(t, b, d))


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(12, 32)
        self.self_attention = ViewHeads()
        self.norm = nn.LayerNorm(32)
        self.cls = nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Any:
        x = self.emb(ids.t())
        x = self.norm(x + self.self_attention(x))
        return self.cls(x.mean(0))


@planted("axes are mixed up", "self_attention", "")
def heads_by_view_instead_of_transpose() -> Setup:
    """(time, batch, width) is viewed as (batch, heads, time, d): sequences of a batch attend to each other (forum)."""
    model = SequenceFirst()
    ids = counting(160, 10)
    return model, train(model, ids, ((ids[:, 1] - ids[:, 0]) % 12) - 1)


class RecurrentReader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        self.lstm = nn.LSTM(16, 32)
        self.fc = nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Any:
        out, _ = self.lstm(self.embedding(ids))
        return self.fc(out[:, -1])


@planted("axes are mixed up", "lstm", "")
def lstm_without_batch_first() -> Setup:
    """Input is (batch, time, width), but batch_first=True is missing: the state runs along the batch (forum)."""
    model = RecurrentReader()
    ids = counting(160, 10)
    return model, train(model, ids, ((ids[:, 1] - ids[:, 0]) % 12) - 1)


class ImageToColumns(nn.Module):
    """A CRNN that reads columns of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.gru = nn.GRU(64, 24, batch_first=True)
        self.fc = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Any:
        y = F.relu(self.conv(x))
        n, c, h, w = y.shape
        y = y.reshape(w, n, c * h).transpose(0, 1)
        return self.fc(self.gru(y)[0][:, -1])


@planted("axes are mixed up", "gru", "conv", "", hard=True)
def columns_by_reshape_instead_of_permute() -> Setup:
    """reshape(w, n, c * h) instead of permute: each sequence is made of pieces of other images (forum)."""
    model = ImageToColumns()
    return model, train(model, *bars(160))


class MixtureHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(10, 4)
        self.softmax = nn.Softmax(dim=0)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3)) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        weights = self.softmax(self.gate(x))
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (weights[..., None] * outputs).sum(1)


@planted("axes are mixed up", "softmax", "gate", "", hard=True)
def gate_softmax_over_the_batch() -> Setup:
    """The experts' weights are a softmax over dim 0, the batch (forum: implicit dimension choice)."""
    model = MixtureHead()
    return model, train(model, *blobs(240))


class DeepSet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 24))
        self.rho = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, points: Tensor) -> Any:
        h = self.phi(points)
        h = h - h.mean(0, keepdim=True)
        return self.rho(h.amax(1))


@planted("axes are mixed up", "", "phi", "rho")
def centered_over_the_batch() -> Setup:
    """Features of sets are centered by mean(0), over the batch, instead of mean(1), over each set (forum)."""
    model = DeepSet()
    radius = torch.randint(2, (160,))
    points = F.normalize(torch.randn(160, 9, 3), dim=-1) * (1 + radius)[:, None, None]
    return model, train(model, points, radius)


class CharModel(nn.Module):
    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.mix1, self.mix2 = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.mix2.weight = self.mix1.weight
        self.head = nn.Linear(dim, LETTERS)

    def forward(self, ids: Tensor) -> Any:
        x, _ = self.rnn(self.embed(ids))
        x = x + F.relu(self.mix1(x))
        return self.head(x + F.relu(self.mix2(x)))


@planted("weights are tied by mistake", "mix1", "mix2", "", hard=True)
def wrong_layer_tied() -> Setup:
    """Tying was meant for head and embedding; a slip ties two hidden layers of the same shape (own variation)."""
    model = CharModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(12):
            x, y = text(8)
            loss = F.cross_entropy(model(x).transpose(1, 2), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


@planted("dropout in the wrong place", "2", "", "5")
def dropout_of_095() -> Setup:
    """nn.Dropout(0.95): somebody took p for the share that is kept, as in old TensorFlow (forum; DEFault: dropout)."""
    model = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.95), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.95), nn.Linear(32, 2)
    )
    x, y = two_classes(240)
    return model, train(model, x, y.long())


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Any:
        return self.drop(self.net(x))


@planted("dropout in the wrong place", "drop", "")
def dropout_on_the_logits() -> Setup:
    """Dropout follows the last layer and zeroes half of the logits (forum)."""
    model = Regressor()
    return model, train(model, *blobs(240))


class WideResidual(nn.Module):
    def __init__(self, width: int = 24, depth: int = 12) -> None:
        super().__init__()
        self.inp = nn.Linear(6, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Sigmoid()) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Any:
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x).squeeze(-1)


@planted(
    "gradients vanish or explode",
    "",
    "inp",
    "layers",
    *(f"layers.{i}" for i in range(4)),
    *(f"layers.{i}.0" for i in range(4)),
)
def twelve_sigmoid_layers() -> Setup:
    """Twelve sigmoid layers in a row without residuals or norms (AUTOTRAINER: vanishing gradient)."""
    model = WideResidual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def run() -> None:
        for x, y in loader(*line(192)):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()

    return model, run


class Recurrent(nn.Module):
    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.encoder = nn.Embedding(LETTERS, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.decoder = nn.Linear(dim, LETTERS)
        self.decoder.weight = self.encoder.weight
        self.init_weights()

    def init_weights(self) -> None:
        self.encoder.weight.data.uniform_(-0.1, 0.1)
        self.decoder.bias.data.zero_()

    def forward(self, ids: Tensor) -> Any:
        return self.decoder(self.rnn(self.encoder(ids))[0])


@planted("tied weights came apart", "decoder", "encoder", "", hard=True)
def tying_undone_by_loading() -> Setup:
    """A checkpoint's tensors are put in as new parameters one by one, which unties head and embedding (forum)."""
    model = Recurrent()
    for name, tensor in model.state_dict().items():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, nn.Parameter(tensor.clone()))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(12):
            x, y = text(8)
            loss = F.cross_entropy(model(x).transpose(1, 2), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run
