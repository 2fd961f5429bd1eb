"""Inputs and labels that are not what the loop's author believes."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.held_out._shared import (
    CHARS,
    SequenceClassifier,
    SmallCNN,
    TinyGPT,
    blobs,
    chars,
    dense,
    houses,
    melodies,
    stripes,
)
from tests.diagnostics.corpus.register import planted


class NoisyNet(nn.Module):
    """Adds noise to its input in training, as augmentation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(10, 32)
        self.fc2 = nn.Linear(32, 3)

    def forward(self, x: Any) -> Any:
        if self.training:
            x += 0.3 * torch.randn_like(x)
        return self.fc2(F.relu(self.fc1(x)))


@planted("input changes in place", "", "fc1")
def augmentation_in_place() -> Setup:
    """`x += noise` in forward changes the data set itself, more in every epoch (forum)."""
    model = NoisyNet()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        x, y = blobs(96)
        for _ in range(5):
            for start in range(0, 96, 32):
                loss = F.cross_entropy(model(x[start : start + 32]), y[start : start + 32])
                opt.zero_grad()
                loss.backward()
                opt.step()

    return model, run


class TabularNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Linear(5, 32)
        self.layer2 = nn.Linear(32, 32)
        self.layer3 = nn.Linear(32, 1)

    def forward(self, x: Any) -> Any:
        return self.layer3(F.relu(self.layer2(F.relu(self.layer1(x))))).squeeze(-1)


@planted("input is not scaled", "", "layer1")
def income_in_units() -> Setup:
    """Columns such as an income of 60000 and a year of 2010 go in as they are (DEFault: data not scaled; forum)."""
    model = TabularNet()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(15):
            z = torch.randn(48, 5)
            x = z * torch.tensor([20_000.0, 8.0, 1.0, 900.0, 0.2]) + torch.tensor([60_000.0, 2010.0, 0.0, 3000.0, 0.5])
            y = (z[:, 0] + z[:, 2] > 0).float()
            loss = F.binary_cross_entropy_with_logits(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("input columns are constant", "", "0")
def columns_lost_in_a_merge() -> Setup:
    """Half of the columns hold one constant, since merging two tables filled them with a default."""
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(20):
            features, y = houses()
            x = torch.cat([features, torch.full_like(features, -1.0)], 1)
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("labels and inputs do not belong together", "")
def inputs_and_labels_shuffled_apart() -> Setup:
    """Inputs and labels are shuffled with two permutations (forum)."""
    model = dense(10, 32, 3)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        x, y = blobs(512)
        x, y = x[torch.randperm(512)], y[torch.randperm(512)]
        for _ in range(2):
            for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=32):
                loss = F.cross_entropy(model(inputs), labels)
                opt.zero_grad()
                loss.backward()
                opt.step()

    return model, run


@planted("same batch again and again", "")
def next_iter_in_the_loop() -> Setup:
    """next(iter(loader)) in the loop makes a new iterator each time: without shuffling it is always the first batch
    (forum)."""
    model = SmallCNN()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        images, labels = stripes(160)
        loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=False)
        for _ in range(14):
            x, y = next(iter(loader))
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class PaddedLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARS) + 1, 24, padding_idx=len(CHARS))
        self.rnn = nn.GRU(24, 32, batch_first=True)
        self.linear = nn.Linear(32, len(CHARS) + 1)

    def forward(self, x: Any) -> Any:
        return self.linear(self.rnn(self.embedding(x))[0])


@planted("padding is learned from", "", "embedding", "linear")
def loss_over_padding() -> Setup:
    """cross_entropy without ignore_index: most targets are padding, and the loss falls by predicting it (forum)."""
    model = PaddedLM()
    pad = len(CHARS)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(15):
            x, y = chars(16, 30)
            lengths = torch.randint(4, 14, (16, 1))
            padding = torch.arange(30) >= lengths
            x, y = x.masked_fill(padding, pad), y.masked_fill(padding, pad)
            loss = F.cross_entropy(model(x).transpose(1, 2), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("rows are all alike", "", "features", "head")
def one_image_repeated_over_the_batch() -> Setup:
    """expand() of the first image instead of a stack of images: all rows of the batch are the same (forum)."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
            self.head = nn.Linear(32, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.features(x))

    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(10):
            images, labels = stripes(16)
            x = images[0].expand(16, -1, -1, -1)
            loss = F.cross_entropy(model(x), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("targets never vary", "")
def labels_all_of_the_first_folder() -> Setup:
    """The labels come from a sorted folder without shuffling, and only the first class was read (forum)."""
    model = SequenceClassifier()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        x, y = melodies(300)
        order = y.argsort()
        x, y = x[order][:72], y[order][:72]
        for _ in range(3):
            for start in range(0, 72, 12):
                loss = F.cross_entropy(model(x[start : start + 12]), y[start : start + 12])
                opt.zero_grad()
                loss.backward()
                opt.step()

    return model, run


@planted("input is not scaled", "", "conv1", hard=True)
def normalized_with_the_wrong_statistics() -> Setup:
    """Images in 0..255 are normalized with the mean and the deviation of images in 0..1 (forum)."""
    model = SmallCNN(channels=3)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

    def run() -> None:
        for _ in range(10):
            x, y = stripes(24, channels=3)
            x = (x * 40 + 90).clamp(0, 255)
            x = (x - mean) / std
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("labels and inputs do not belong together", "", "lm_head", hard=True)
def targets_of_the_neighboring_sequence() -> Setup:
    """Two loaders, one of inputs and one of targets, are zipped, and one of them dropped its first sample: each text
    is paired with the continuation of another."""
    model = TinyGPT()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        x, y = chars(97)
        inputs = DataLoader(TensorDataset(x[:-1]), batch_size=12)
        targets = DataLoader(TensorDataset(y[1:]), batch_size=12)
        for _ in range(2):
            for (a,), (b,) in zip(inputs, targets, strict=True):
                loss = F.cross_entropy(model(a).flatten(0, 1), b.flatten())
                opt.zero_grad()
                loss.backward()
                opt.step()

    return model, run
