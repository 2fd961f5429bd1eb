"""Batches that are not what they should be."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.diagnostics.cases import Objective, Setup, adamw, fault, run_steps
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import classify, images, points, texts


def steps(model: nn.Module, data: Callable[[int], tuple[Tensor, Tensor]], count: int = 6) -> Setup:
    batch = classify(model, data)
    return model, lambda: run_steps((batch(i) for i in range(count)), adamw(model))


class Centering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp(16, 32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x -= x.mean(1, keepdim=True) + 0.5
        y: Tensor = self.layers(x)
        return y


@fault("input-changed-in-place", "")
def forward_subtracts_in_place() -> Setup:
    """Batches are slices of the data."""
    model, (x, y) = Centering(), points(0, count=96)
    return steps(model, lambda i: (x[16 * i : 16 * i + 16], y[16 * i : 16 * i + 16]))


@fault("input-changed-in-place", "")
def loop_scales_in_place_each_epoch() -> Setup:
    model, (x, labels) = mlp(16, 32, 4), points(0)

    def objective() -> Tensor:
        x.mul_(0.9)
        return F.cross_entropy(model(x), labels)

    return model, lambda: run_steps([objective] * 6, adamw(model))


@fault("unscaled-input", "0", ["loss-above-chance"])
def pixels_up_to_255() -> Setup:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))

    def data(number: int) -> tuple[Tensor, Tensor]:
        x, y = images(number)
        return (80 * x + 100).clamp(0, 255), y

    return steps(model, data)


@fault("unscaled-input", "0", ["loss-above-chance"])
def one_column_in_thousands() -> Setup:
    model = mlp(16, 32, 4)

    def data(number: int) -> tuple[Tensor, Tensor]:
        x, y = points(number)
        return torch.cat([x[:, :15], 3000 + 900 * x[:, 15:]], 1), y

    return steps(model, data)


@fault("constant-input", "")
def samples_all_alike() -> Setup:
    def data(number: int) -> tuple[Tensor, Tensor]:
        x, y = points(number)
        return x[:1].repeat(len(x), 1), y

    return steps(mlp(16, 32, 4), data)


@fault("constant-input", "")
def most_columns_never_vary() -> Setup:
    def data(number: int) -> tuple[Tensor, Tensor]:
        x, y = points(number)
        return torch.cat([x[:, :6], torch.full((len(x), 10), 0.7)], 1), y

    return steps(mlp(16, 32, 4), data)


class LastOfAll(nn.Module):
    """Subtracts the sample from itself before the head, or ignores it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.body, self.head, self.factor = mlp(16, 32, 32), nn.Linear(32, 4), factor

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        y: Tensor = self.head(self.factor * x)
        return y


@fault("collapsed-output", "", ["zero-gradient", "optimizer-eps-dominates", "exploding-gradients"])
def features_times_a_tiny_number() -> Setup:
    return steps(LastOfAll(1e-12), points, count=12)


@fault("collapsed-output", "", ["zero-gradient"])
def features_times_zero() -> Setup:
    return steps(LastOfAll(0.0), points, count=12)


def _loader(workers: int = 0) -> "DataLoader[Any]":
    return DataLoader(TensorDataset(*points(0, count=128)), batch_size=32, num_workers=workers)


@fault("same-batch-repeated", "")
def first_batch_each_time() -> Setup:
    model, loader = mlp(16, 32, 4), _loader()

    def objective() -> Tensor:
        x, y = next(iter(loader))
        return F.cross_entropy(model(x), y)

    return model, lambda: run_steps([objective] * 8, adamw(model))


@fault("same-batch-repeated", "")
def break_after_the_first_batch() -> Setup:
    model, loader = mlp(16, 32, 4), _loader()

    def objectives() -> Any:
        for _ in range(8):
            for x, y in loader:
                yield lambda x=x, y=y: F.cross_entropy(model(x), y)
                break

    return model, lambda: run_steps(objectives(), adamw(model))


def _padded(number: int) -> tuple[Tensor, Tensor]:
    tokens, targets = texts(number)
    ends = 3 + torch.arange(16)[:, None] % 10
    place = torch.arange(16)
    return (tokens % 15 + 1).masked_fill(place > ends, 0), (targets % 15 + 1).masked_fill(place >= ends, 0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.rnn, self.head = nn.Embedding(17, 24), nn.GRU(24, 24, batch_first=True), nn.Linear(24, 17)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.rnn(self.tokens(tokens))[0])
        return y


def _padding(**options: Any) -> Setup:
    model = Recurrent()

    def batch(number: int) -> Objective:
        tokens, targets = _padded(number)
        return lambda: F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), **options)

    return model, lambda: run_steps((batch(i) for i in range(4)), adamw(model))


@fault("trains-on-padding", "")
def padding_not_ignored() -> Setup:
    return _padding()


@fault("trains-on-padding", "")
def another_token_ignored() -> Setup:
    return _padding(ignore_index=16)


@fault("sorted-batches", "")
def data_sorted_by_class() -> Setup:
    def data(number: int) -> tuple[Tensor, Tensor]:
        x, y = points(number, count=128)
        chosen = (y == number % 4).nonzero()[:16, 0]
        return x[chosen], y[chosen]

    return steps(mlp(16, 32, 4), data, count=8)


@fault("sorted-batches", "")
def one_folder_after_the_other() -> Setup:
    """The loader reads the folder of one class to its end, then that of the next."""

    def data(number: int) -> tuple[Tensor, Tensor]:
        x, y = images(number, count=128)
        chosen = (y == number // 3).nonzero()[:12, 0]
        return x[chosen], y[chosen]

    return steps(nn.Sequential(nn.Flatten(), mlp(64, 32, 4)), data, count=9)


@fault("sorted-batches", "")
def classes_in_order_across_batches() -> Setup:
    """A batch contains the end of one class and the beginning of the next."""
    x, y = points(0, count=192)
    order = y.argsort()
    return steps(mlp(16, 32, 4), lambda i: (x[order[24 * i : 24 * i + 24]], y[order[24 * i : 24 * i + 24]]), count=8)
