"""Data that is not what the author believes."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Run, Setup
from tests.diagnostics.corpus.register import planted
from tests.diagnostics.corpus.tuning._data import bars, blobs, counting, digits, line, loader, two_classes


def mlp(width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, outputs))


def epochs(model: nn.Module, inputs: Tensor, labels: Tensor, count: int = 1, lr: float = 3e-3) -> Run:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def run() -> None:
        for _ in range(count):
            for x, y in loader(inputs, labels):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y) if y.dtype == torch.long else F.mse_loss(model(x).squeeze(-1), y)
                loss.backward()
                optimizer.step()

    return run


class InPlaceNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 4)))
        self.fc = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Any:
        x -= x.mean()
        x /= x.std()
        return self.fc(self.conv(x).flatten(1))


@planted("input changes in place", "")
def input_standardized_in_place() -> Setup:
    """forward normalizes with -= and /=, and so changes the caller's batch: the data set itself (forum)."""
    model = InPlaceNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    images, labels = bars(128)

    def run() -> None:
        for start in range(0, 128, 16):
            x, y = images[start : start + 16], labels[start : start + 16]
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return model, run


@planted("input is not scaled", "", "0")
def house_prices_unscaled() -> Setup:
    """Columns such as square meters, years and dollars go in as they are (forum; AUTOTRAINER: data not normalized)."""
    model = mlp(4, 1)
    count = 240
    x = torch.tensor([30, 1900, 20_000, 0]) + torch.tensor([200, 120, 90_000, 1]) * torch.rand(count, 4)
    y = (x[:, 0] - 130) / 60 + 0.1 * torch.randn(count)
    return model, epochs(model, x, y)


@planted("input columns are constant", "", "0")
def one_hot_of_a_wrong_column() -> Setup:
    """Half of the columns are constant, since the encoder was fitted to a file with one category (forum)."""
    x, y = blobs(240)
    x = torch.cat([x[:, :5], torch.ones(240, 5)], dim=1)
    model = mlp(10, 3)
    return model, epochs(model, x, y)


class TextCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(13, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.fc = nn.Linear(24, 13)

    def forward(self, ids: Tensor) -> Any:
        return self.fc(self.lstm(self.embedding(ids))[0])


def padded(count: int) -> tuple[Tensor, Tensor]:
    """Counting sequences of 4 to 8 tokens, padded with 0 to 17."""
    ids = counting(count, 18) + 1
    ids = ids.masked_fill(torch.arange(18) >= torch.randint(4, 9, (count, 1)), 0)
    return ids[:, :-1], ids[:, 1:]


@planted("padding is learned from", "")
def padding_among_the_targets() -> Setup:
    """The padding token is a target like others: ignore_index is missing (forum)."""
    model = TextCNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.CrossEntropyLoss()

    def run() -> None:
        for _ in range(15):
            x, y = padded(16)
            optimizer.zero_grad()
            criterion(model(x).view(-1, 13), y.reshape(-1)).backward()
            optimizer.step()

    return model, run


@planted("same batch again and again", "")
def next_of_iter_in_the_loop() -> Setup:
    """next(iter(loader)) in each step of an unshuffled loader is always the first batch (forum)."""
    model = mlp(10, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train = loader(*blobs(320), shuffle=False)

    def run() -> None:
        for _ in range(20):
            x, y = next(iter(train))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

    return model, run


@planted("rows are all alike", "")
def expand_instead_of_stack() -> Setup:
    """The collate function repeats the first sample: every row of a batch is the same (own variation)."""
    model = mlp(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return samples[0][0].expand(len(samples), -1), torch.stack([y for _, y in samples])

    def run() -> None:
        for _ in range(15):
            x, y = collate(list(zip(*line(16), strict=True)))
            optimizer.zero_grad()
            F.mse_loss(model(x).squeeze(-1), y).backward()
            optimizer.step()

    return model, run


@planted("labels and inputs do not belong together", "", hard=True)
def inputs_sorted_without_their_labels() -> Setup:
    """Inputs were shuffled with one permutation and labels with another (forum; TrainCheck)."""
    x, y = blobs(240)
    model = mlp(10, 3)
    return model, epochs(model, x[torch.randperm(240)], y[torch.randperm(240)], 2)


@planted("input is not scaled", "", "0")
def images_from_0_to_255() -> Setup:
    """Pixels stay between 0 and 255, since ToTensor scales uint8 only and these were floats (forum)."""
    images, labels = bars(192)
    images = (255 * (images + 1) / 3.5).clamp(0, 255).round()
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 32),
        nn.ReLU(),
        nn.Linear(32, 4),
    )
    return model, epochs(model, images, labels, lr=1e-3)


@planted("input is not scaled", "", "0", hard=True)
def standardized_with_swapped_mean_and_std() -> Setup:
    """(x - std) / mean with a mean of 0.01: inputs have a std of 90 (forum: transforms.Normalize)."""
    x, y = two_classes(240)
    x = x + 0.01
    mean, std = 0.011, x.std()
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 2))
    return model, epochs(model, (x - std) / mean, y.long())


@planted("labels and inputs do not belong together", "")
def labels_of_the_previous_batch() -> Setup:
    """A prefetching loop pairs the inputs with the labels of the batch before (own variation)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def run() -> None:
        _, labels = bars(32)
        for _ in range(30):
            inputs, next_labels = bars(32)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            labels = next_labels

    return model, run


@planted("rows are all alike", "", hard=True)
def uint8_overflow_blanks_the_images() -> Setup:
    """Images are multiplied by 256 as uint8, which wraps to 0, so all inputs are blank (forum: uint8 arithmetic)."""
    raw = (digits(192) * 3).to(torch.uint8)
    images = (raw * 64 * 4).float() / 255
    corners = (raw.flatten(1).float().argmax(1) % 8 > 2).long()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
    return model, epochs(model, images, corners)


@planted("batch is empty", "", hard=True)
def filter_leaves_no_sample() -> Setup:
    """Samples without a label are filtered out of each batch; one batch has no others, and its mean is NaN (forum)."""
    model = mlp(10, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def run() -> None:
        for step in range(12):
            x, y = blobs(16)
            labeled = torch.rand(16) < (0.4 if step != 8 else 0.0)
            loss = F.cross_entropy(model(x[labeled]), y[labeled])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run
