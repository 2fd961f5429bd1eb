"""Training loops whose steps are in the wrong order, or missing."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.register import planted
from tests.diagnostics.corpus.tuning._data import LETTERS, bars, blobs, line, loader, text, two_classes, waves


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(16 * 2 * 2, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        return self.fc2(F.relu(self.fc1(x)))


@planted("gradients are not reset", "")
def zero_grad_forgotten() -> Setup:
    """The tutorial's loop without optimizer.zero_grad() (forum; AUTOTRAINER and DeepFD name it too)."""
    net = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    trainloader = loader(*bars(160))

    def run() -> None:
        for _epoch in range(2):
            running_loss = 0.0
            for inputs, labels in trainloader:
                outputs = net(inputs)
                loss = criterion(outputs, labels)
                loss.backward()
                optimizer.step()
                running_loss += loss.item()

    return net, run


@planted("gradients are zeroed before the step", "")
def zero_grad_between_backward_and_step() -> Setup:
    """optimizer.zero_grad() stands between backward and step, so nothing is ever learned (forum)."""
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()

    def run() -> None:
        for X, y in loader(*blobs(192)):  # noqa: N806
            loss = loss_fn(model(X), y)
            loss.backward()
            optimizer.zero_grad()
            optimizer.step()

    return model, run


class Classifier(nn.Module):
    def __init__(self, p: float = 0.3) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU()
        )
        self.dropout = nn.Dropout(p)
        self.classifier = nn.Linear(8 * 2 * 2, 4)

    def forward(self, x: Tensor) -> Any:
        return self.classifier(self.dropout(self.features(x).flatten(1)))


@planted("trains in eval mode", "")
def eval_after_the_first_epoch() -> Setup:
    """Validation sets model.eval(), and nothing sets model.train() afterwards (forum)."""
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    train, test = loader(*bars(96)), loader(*bars(48), shuffle=False)

    def run() -> None:
        model.train()
        for _ in range(3):
            for x, y in train:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for x, y in test:
                    model(x).argmax(1).eq(y).sum()

    return model, run


@planted("evaluates in train mode", "", "dropout", "features.1")
def validation_without_eval() -> Setup:
    """The validation loop has torch.no_grad() but not model.eval() (forum)."""
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    train, test = loader(*bars(96)), loader(*bars(48), shuffle=False)

    def run() -> None:
        for _ in range(2):
            for x, y in train:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            correct = 0
            with torch.no_grad():
                for x, y in test:
                    correct += int(model(x).argmax(1).eq(y).sum())

    return model, run


class SentimentModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(50, 16)
        self.hidden = nn.Linear(16, 32)
        self.output = nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Any:
        x = F.relu(self.hidden(self.embedding(ids)))
        x = F.dropout(x, 0.4)
        return self.output(x)


@planted("dropout ignores eval mode", "")
def functional_dropout_without_training() -> Setup:
    """F.dropout(x, p) stays active in eval mode, because training=self.training is missing (forum)."""
    model = SentimentModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def batch(n: int = 32) -> tuple[Tensor, Tensor]:
        y = torch.randint(2, (n,))
        return torch.randint(25, (n, 8)) + 25 * y[:, None] * (torch.rand(n, 8) < 0.7), y

    def run() -> None:
        for _ in range(3):
            model.train()
            for _ in range(5):
                ids, y = batch()
                optimizer.zero_grad()
                F.cross_entropy(model(ids), y).backward()
                optimizer.step()
            model.eval()
            with torch.inference_mode():
                ids, y = batch(64)
                model(ids).argmax(-1).eq(y).float().mean()

    return model, run


@planted("schedule is too fast or too slow", "")
def step_lr_per_batch() -> Setup:
    """StepLR(step_size=3) counts epochs in the author's mind, but scheduler.step() is called per batch (forum)."""
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
    train = loader(*blobs(240), batch_size=16)

    def run() -> None:
        for _ in range(2):
            for x, y in train:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                scheduler.step()

    return model, run


class Scaler:
    """The gradient scaler of an old training script: skips a step whose gradients are not finite."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def step(self, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        (loss * self.scale).backward()
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if all(bool(grad.half().isfinite().all()) for grad in grads):
            for grad in grads:
                grad /= self.scale
            optimizer.step()


@planted("scaler skips every step", "")
def static_scale_overflows_half() -> Setup:
    """A static loss scale of 2**24 overflows float16 every time, so the step is always skipped (forum: GradScaler)."""
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = Scaler(2.0**24)

    def run() -> None:
        for x, y in loader(*line(192)):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x).squeeze(1), y)
            scaler.step(loss, optimizer)

    return model, run


@planted("clipping always bites", "")
def clipped_to_1e_minus_6() -> Setup:
    """Gradients are clipped to a norm of 1e-6 under SGD: somebody took max_norm for an epsilon (forum)."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def run() -> None:
        for x, y in loader(*bars(192)):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1e-6)
            optimizer.step()

    return model, run


class CharLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(LETTERS, 16)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.decoder = nn.Linear(32, LETTERS)

    def forward(self, x: Tensor, state: Any = None) -> Any:
        out, state = self.lstm(self.encoder(x), state)
        return self.decoder(out), state


@planted("steps move nothing", "")
def step_only_after_an_accumulation_never_reached() -> Setup:
    """Steps come after every 64 batches, and an epoch has 12: `(i + 1) % 64 == 0` never holds (forum: accumulation)."""
    model = CharLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    accumulation_steps = 64

    def run() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            for i in range(12):
                x, y = text(8)
                logits, _ = model(x)
                (F.cross_entropy(logits.flatten(0, 1), y.flatten()) / accumulation_steps).backward()
                if (i + 1) % accumulation_steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()

    return model, run


@planted("gradients are not reset", "", hard=True)
def zero_grad_of_the_other_optimizer() -> Setup:
    """Two optimizers; the head's gradients are never reset, since body_opt.zero_grad() is called twice (forum)."""
    model = nn.ModuleDict(
        {
            "body": nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()),
            "head": nn.Linear(16, 3),
        }
    )
    body_opt = torch.optim.Adam(model["body"].parameters(), lr=1e-3)
    head_opt = torch.optim.SGD(model["head"].parameters(), lr=0.02)

    def run() -> None:
        for x, y in loader(*blobs(320)):
            body_opt.zero_grad()
            body_opt.zero_grad()
            F.cross_entropy(model["head"](model["body"](x)), y).backward()
            body_opt.step()
            head_opt.step()

    return model, run


@planted("gradients are not reset", "", hard=True)
def zero_grad_once_per_epoch() -> Setup:
    """zero_grad stands in the loop over epochs instead of that over batches: each batch adds to the last (forum)."""
    model = nn.GRU(1, 16, batch_first=True)
    head = nn.Linear(16, 1)
    net = nn.ModuleDict({"gru": model, "head": head})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    windows, following = waves(96)

    def run() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            for x, y in loader(windows, following):
                _, h = model(x)
                loss = F.mse_loss(head(h[-1]).squeeze(-1), y)
                loss.backward()
                optimizer.step()

    return net, run


@planted("steps move nothing", "")
def step_without_parentheses() -> Setup:
    """`optimizer.step` without parentheses is an expression that does nothing (forum)."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    criterion = nn.BCEWithLogitsLoss()

    def run() -> None:
        for x, y in loader(*two_classes(160)):
            optimizer.zero_grad()
            criterion(model(x).squeeze(1), y).backward()
            optimizer.step  # noqa: B018 # the mistake

    return model, run
