"""Models that look as if they saw the future, mixed samples, or got odd batches, but do not."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.diagnostics.cases import Objective, Setup, adamw, healthy, run_steps, two_training_steps
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import VOCAB_SIZE, classify, points, texts


def next_tokens(model: Callable[..., Any], first: int = 0) -> Callable[[int], Objective]:
    """Predict the next tokens; only from the position `first` on."""

    def batch(number: int) -> Objective:
        tokens, targets = texts(number)
        targets = targets.masked_fill(torch.arange(16) < first, -100)
        return lambda: F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    return batch


class PrefixLM(nn.Module):
    """The first tokens see each other; they have no targets."""

    def __init__(self, prefix: int) -> None:
        super().__init__()
        self.tokens, self.positions, self.prefix = nn.Embedding(16, 32), nn.Embedding(16, 32), prefix
        self.attention, self.head = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(16))
        mask = torch.ones(16, 16, dtype=torch.bool).triu(1)
        mask[:, : self.prefix] = False
        y: Tensor = self.head(x + self.attention(x, x, x, attn_mask=mask)[0])
        return y


@healthy((0, 1))
def prefix_language_model(seed: int) -> Setup:
    model = PrefixLM(prefix=6 - seed)
    return two_training_steps(model, next_tokens(model, first=6))


class Copier(nn.Module):
    """The decoder repeats what the encoder, which sees everything, has read."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(16, 32), nn.Linear(32, 16)
        self.transformer = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)

    def forward(self, source: Tensor, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        y: Tensor = self.head(self.transformer(self.tokens(source), self.tokens(tokens), tgt_mask=mask))
        return y


@healthy((0,))
def seq2seq_that_copies(seed: int) -> Setup:
    model = Copier()
    return two_training_steps(model, lambda i: next_tokens(lambda x: model(x, x))(i))


class TimeFirst(nn.Module):
    """(time, batch, width) everywhere."""

    def __init__(self, recurrent: bool) -> None:
        super().__init__()
        self.tokens, self.head, self.recurrent = nn.Embedding(16, 32), nn.Linear(32, 4), recurrent
        self.layer = nn.LSTM(32, 32) if recurrent else nn.TransformerEncoderLayer(32, 4, 64)
        self.register_buffer("pe", torch.randn(16, 1, 32))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens.T) + self.get_buffer("pe")
        y: Tensor = self.head(self.layer(x)[0][-1] if self.recurrent else self.layer(x).mean(0))
        return y


@healthy((0, 1))
def time_first(seed: int) -> Setup:
    model = TimeFirst(recurrent=bool(seed))

    def batch(number: int) -> Objective:
        tokens, targets = texts(number, count=12)
        labels = (targets[:, 0] - tokens[:, 0]) % VOCAB_SIZE
        return lambda: F.cross_entropy(model(tokens), labels)

    return two_training_steps(model, batch)


class SlotAttention(nn.Module):
    """Slots compete for tokens: a softmax over the queries, and then a mean over the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.slots, self.head = nn.Parameter(torch.randn(4, 16)), nn.Linear(16, 4)
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, (8, 16))
        weights = (self.query(self.slots).expand(len(x), -1, -1) @ self.key(x).transpose(1, 2) / 4).softmax(1)
        y: Tensor = self.head((weights / weights.sum(-1, keepdim=True) @ self.value(x)).mean(1))
        return y


@healthy((0,))
def slot_attention(seed: int) -> Setup:
    model = SlotAttention()
    return two_training_steps(model, classify(model, lambda i: points(i, width=128)))


class GraphNetwork(nn.Module):
    """Rows are nodes, which depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)
        self.register_buffer("neighbors", torch.rand(64, 64).softmax(1))

    def forward(self, x: Tensor) -> Tensor:
        neighbors = self.get_buffer("neighbors")
        y: Tensor = neighbors @ self.second(torch.relu(neighbors @ self.first(x)))
        return y


@healthy((0,))
def graph_network(seed: int) -> Setup:
    model = GraphNetwork()
    return two_training_steps(model, classify(model))


@healthy((0, 1))
def one_batch_on_purpose(seed: int) -> Setup:
    """Overfits one batch, or a data set of one batch."""
    model, data = mlp(16, 32, 4), TensorDataset(*points(seed, count=32))
    loader = DataLoader(data, batch_size=32)
    batch = next(iter(loader))

    def objective() -> Tensor:
        x, y = next(iter(loader)) if seed else batch
        return F.cross_entropy(model(x), y)

    return model, lambda: run_steps([objective] * 8, adamw(model))


@healthy((0,))
def buffer_filled_with_each_batch(seed: int) -> Setup:
    model, inputs = mlp(16, 32, 4), torch.empty(64, 16)

    def objectives() -> Any:
        for i in range(6):
            x, y = points(i)
            inputs.copy_(x)
            yield lambda y=y: F.cross_entropy(model(inputs), y)

    return model, lambda: run_steps(objectives(), adamw(model))


class ReturnsFeatures(nn.Module):
    """The features between two linear layers are part of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(16, 32, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return self.head(features), features


@healthy((0,))
def features_and_logits(seed: int) -> Setup:
    model = ReturnsFeatures()

    def batch(number: int) -> Objective:
        x, y = points(number)

        def objective() -> Tensor:
            logits, features = model(x)
            loss: Tensor = F.cross_entropy(logits, y) + 0.01 * features.square().mean()
            return loss

        return objective

    return two_training_steps(model, batch)
