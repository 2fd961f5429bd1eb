"""Training loops that call things in a wrong order, or not at all."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.held_out._shared import (
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


@planted("gradients are zeroed before the step", "")
def zero_grad_after_backward() -> Setup:
    """loss.backward(); optimizer.zero_grad(); optimizer.step() (DeepFD: wrong order; forum)."""
    net = SmallCNN()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def run() -> None:
        images, labels = stripes(128)
        for _ in range(2):
            for x, y in DataLoader(TensorDataset(images, labels), batch_size=32):
                loss = criterion(net(x), y)
                loss.backward()
                optimizer.zero_grad()
                optimizer.step()

    return net, run


@planted("gradients are not reset", "")
def no_zero_grad() -> Setup:
    """optimizer.zero_grad() is missing (AUTOTRAINER, DEFault; forum)."""
    model = dense(6, 32, 32, 1)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(20):
            x, y = houses()
            loss = F.l1_loss(model(x).squeeze(1), y)
            loss.backward()
            opt.step()

    return model, run


@planted("gradients are not reset", "")
def zero_grad_once_per_epoch() -> Setup:
    """zero_grad stands before the inner loop, so gradients add up over an epoch (TrainCheck; forum)."""
    model = SequenceClassifier()
    opt = torch.optim.SGD(model.parameters(), lr=0.02)

    def run() -> None:
        x, y = melodies(96)
        loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
        for _ in range(3):
            opt.zero_grad()
            for inputs, labels in loader:
                loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                opt.step()

    return model, run


class TextCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.convs = nn.ModuleList([nn.Conv1d(16, 12, k) for k in (2, 3)])
        self.bn = nn.BatchNorm1d(24)
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(24, 2)

    def forward(self, words: Any) -> Any:
        x = self.embedding(words).transpose(1, 2)
        x = torch.cat([F.relu(conv(x)).amax(2) for conv in self.convs], 1)
        return self.fc(self.dropout(self.bn(x)))


def reviews(n: int = 32) -> Any:
    """Sequences of words; a text with word 7 or 8 is good."""
    words = torch.randint(9, 30, (n, 12))
    labels = torch.randint(2, (n,))
    words[torch.arange(n), torch.randint(12, (n,))] = torch.where(labels == 1, 7, 1)
    return words, labels


@planted("trains in eval mode", "", "bn", "dropout")
def eval_once_and_never_train_again() -> Setup:
    """model.eval() after the first epoch, and no model.train() afterwards (TrainCheck; forum)."""
    model = TextCNN()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        words, labels = reviews(96)
        loader = DataLoader(TensorDataset(words, labels), batch_size=16, shuffle=True)
        model.train()
        for _ in range(3):
            for x, y in loader:
                opt.zero_grad()
                F.cross_entropy(model(x), y).backward()
                opt.step()
            model.eval()
            with torch.no_grad():
                (model(words).argmax(1) == labels).float().mean()

    return model, run


@planted("evaluates in train mode", "", "bn", "dropout")
def validation_without_eval() -> Setup:
    """The validation after each epoch runs without model.eval() (forum)."""
    model = TextCNN()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(3):
            for _ in range(5):
                x, y = reviews()
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
            with torch.no_grad():
                for _ in range(2):
                    x, y = reviews()
                    F.cross_entropy(model(x), y)

    return model, run


class DropoutMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Linear(10, 64)
        self.middle = nn.Linear(64, 64)
        self.output = nn.Linear(64, 3)

    def forward(self, x: Any) -> Any:
        x = F.dropout(F.relu(self.input(x)), 0.4)
        x = F.dropout(F.relu(self.middle(x)), 0.4)
        return self.output(x)


@planted("dropout ignores eval mode", "", "dropout", "middle", "input", "output")
def functional_dropout() -> Setup:
    """F.dropout without training=self.training (forum)."""
    model = DropoutMLP()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        x_val, y_val = blobs(100)
        for _ in range(3):
            model.train()
            for _ in range(5):
                x, y = blobs()
                opt.zero_grad()
                F.cross_entropy(model(x), y).backward()
                opt.step()
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(x_val), y_val)

    return model, run


@planted("schedule is too fast or too slow", "")
def epoch_schedule_stepped_per_batch() -> Setup:
    """ExponentialLR(gamma=0.5), meant for epochs, is stepped after each batch (forum)."""
    model = SmallCNN()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.5)

    def run() -> None:
        for _ in range(25):
            x, y = stripes(16)
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            scheduler.step()

    return model, run


@planted("scaler skips every step", "")
def scaler_with_a_huge_scale() -> Setup:
    """GradScaler(init_scale=2.0**127): scaled gradients overflow in every step, so all are skipped (forum)."""
    model = dense(10, 64, 3)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=0.9999)

    def run() -> None:
        for _ in range(12):
            x, y = blobs()
            loss = 4 * F.cross_entropy(model(x), y)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()

    return model, run


@planted("clipping always bites", "")
def clipping_at_a_millionth() -> Setup:
    """clip_grad_norm_(..., 1e-6) with SGD: clipping decides the length of every step (a tolerance taken for a norm)."""
    model = SequenceClassifier(nn.GRU)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        for _ in range(15):
            x, y = melodies()
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1e-6)
            opt.step()

    return model, run


@planted("gradients are not reset", "", hard=True)
def accumulation_without_reset() -> Setup:
    """Gradients are accumulated over four batches and stepped rightly, but never zeroed after the step (forum)."""
    model = TinyGPT()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accumulate = 4

    def run() -> None:
        opt.zero_grad()
        for step in range(24):
            x, y = chars(4, 16)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / accumulate
            loss.backward()
            if (step + 1) % accumulate == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()

    return model, run


@planted("steps move nothing", "", hard=True)
def step_only_at_a_number_of_batches_never_reached() -> Setup:
    """`if (i + 1) % 16 == 0: step()` in a loop over 10 batches which zeroes gradients at the start of every epoch."""
    model = dense(6, 32, 1)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)

    def run() -> None:
        x, y = houses(160)
        loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
        for _ in range(3):
            opt.zero_grad()
            for i, (inputs, targets) in enumerate(loader):
                loss = F.mse_loss(model(inputs).squeeze(-1), targets) / 16
                loss.backward()
                if (i + 1) % 16 == 0:
                    opt.step()
                    opt.zero_grad()

    return model, run
