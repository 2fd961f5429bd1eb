"""Losses that do not fit the output or the targets."""

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
    waves,
)
from tests.diagnostics.corpus.register import planted


class DigitNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU())
        self.classifier = nn.Linear(16 * 9, 3)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x: Any) -> Any:
        x = self.features(x).flatten(1)
        return self.softmax(self.classifier(x))


@planted("probabilities where logits are expected", "", "softmax")
def softmax_before_cross_entropy() -> Setup:
    """nn.CrossEntropyLoss is given the output of nn.Softmax (forum; DeepFD: wrong activation of the last layer)."""
    net = DigitNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def run() -> None:
        images, labels = stripes(128)
        for _ in range(3):
            for x, y in DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True):
                optimizer.zero_grad()
                loss = criterion(net(x), y)
                loss.backward()
                optimizer.step()

    return net, run


class ChurnModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 24)
        self.output = nn.Linear(24, 1)

    def forward(self, x: Any) -> Any:
        return torch.sigmoid(self.output(torch.tanh(self.hidden(x)))).squeeze(1)


@planted("probabilities where logits are expected", "", "output")
def sigmoid_twice() -> Setup:
    """F.binary_cross_entropy_with_logits is given the output of a sigmoid (forum)."""
    model = ChurnModel()
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    def run() -> None:
        for _ in range(15):
            x, price = houses(48)
            loss = F.binary_cross_entropy_with_logits(model(x), (price > 0).float())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("logits where probabilities are expected", "", "2")
def nll_of_logits() -> Setup:
    """nn.NLLLoss without log_softmax: it just grows the logit of the right class (forum)."""
    model = dense(10, 32, 3)
    loss_fn = nn.NLLLoss()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(20):
            x, y = blobs()
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            opt.step()

    return model, run


@planted("logits where probabilities are expected", "", "out")
def kl_of_logits() -> Setup:
    """F.kl_div is given logits instead of log probabilities (documentation of nn.KLDivLoss; forum)."""
    model = SequenceClassifier(nn.GRU)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(12):
            x, labels = melodies()
            soft = F.one_hot(labels, 3) * 0.85 + 0.05
            loss = F.kl_div(model(x), soft, reduction="batchmean")
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class PriceRegressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 32)
        self.fc2 = nn.Linear(32, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Any) -> Any:
        return self.head(F.relu(self.fc2(F.relu(self.fc1(x)))))


@planted("loss broadcasts predictions against targets", "", "head")
def smooth_l1_broadcasts() -> Setup:
    """Predictions are of shape (n, 1) and targets of shape (n,), so the loss compares all pairs (forum)."""
    model = PriceRegressor()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss_fn = nn.SmoothL1Loss()

    def run() -> None:
        x, y = houses(160)
        loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
        for _ in range(3):
            model.train()
            for inputs, targets in loader:
                loss = loss_fn(model(inputs), targets)
                opt.zero_grad()
                loss.backward()
                opt.step()
            model.eval()
            with torch.no_grad():
                loss_fn(model(x), y)

    return model, run


@planted("loss broadcasts predictions against targets", "", "3", "2")
def handwritten_mse_broadcasts() -> Setup:
    """((pred - y) ** 2).mean() with a prediction of shape (n,) and a target of shape (n, 1) (forum)."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))
    opt = torch.optim.Adam(model.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(20):
            x, y = waves()
            pred = model(x)
            loss = ((pred - y) ** 2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("label smoothing hides the labels", "")
def smoothing_of_one() -> Setup:
    """label_smoothing=1.0: every class is as right as every other (a percentage taken for a share)."""
    model = SmallCNN()
    criterion = nn.CrossEntropyLoss(label_smoothing=1.0)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(10):
            x, y = stripes()
            loss = criterion(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("loss has no targets left", "")
def all_targets_ignored() -> Setup:
    """The prompt mask of a fine-tuning covers the answer too, so every target is -100 (forum: loss is nan or 0)."""
    model = TinyGPT()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    prompt_length = 24

    def run() -> None:
        for _ in range(6):
            x, y = chars(8)
            labels = y.clone()
            labels[:, :prompt_length] = -100
            logits = model(x)
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("targets are the inputs", "", "lm_head")
def next_token_not_shifted() -> Setup:
    """A language model is trained to repeat its input: the targets were not shifted by one (forum)."""
    model = TinyGPT()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            tokens, _ = chars()
            logits = model(tokens)
            loss = F.cross_entropy(logits.transpose(1, 2), tokens)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class PendulumNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l1 = nn.Linear(6, 48)
        self.l2 = nn.Linear(48, 48)
        self.l3 = nn.Linear(48, 1)
        self.act = nn.ReLU()

    def forward(self, x: Any) -> Any:
        x = self.act(self.l1(x))
        x = self.act(self.l2(x))
        return self.act(self.l3(x)).squeeze(-1)


@planted("targets cannot be reached by the output", "", "act", "l3")
def relu_on_regression_output() -> Setup:
    """Half of the targets are negative, but the last layer ends with a ReLU (DeepFD: wrong last activation)."""
    model = PendulumNet()
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(25):
            x, y = houses()
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class ConvAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.decoder = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1), nn.Sigmoid())

    def forward(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))


@planted("targets cannot be reached by the output", "", "decoder", "decoder.2")
def sigmoid_decoder_of_standardized_images() -> Setup:
    """An autoencoder ends in a sigmoid, but its images have mean 0 and negative values (forum)."""
    model = ConvAutoencoder()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(15):
            images, _ = stripes()
            images = (images - images.mean()) / images.std()
            loss = F.mse_loss(model(images), images)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("loss grows with the batch", "")
def summed_error_over_pixels() -> Setup:
    """reduction="sum" over a large batch with a learning rate made for a mean: the steps are thousands of times too
    large (forum)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 144))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.MSELoss(reduction="sum")

    def run() -> None:
        for _ in range(10):
            x, _ = stripes(64)
            loss = criterion(model(x), x.flatten(1))
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = dense(10, 32, 8)

    def forward(self, x: Any) -> Any:
        return F.normalize(self.embed(x), dim=1)


@planted("loss is maximized", "", "embed")
def similarity_of_pairs_minimized() -> Setup:
    """The mean cosine similarity of matching pairs is the loss: its sign is missing (forum)."""
    model = Siamese()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(20):
            x, _ = blobs(48)
            view1 = x + 0.1 * torch.randn_like(x)
            view2 = x + 0.1 * torch.randn_like(x)
            loss = F.cosine_similarity(model(view1), model(view2)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class SpeechNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 24, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(48, 5)

    def forward(self, x: Any) -> Any:
        states, _ = self.gru(x)
        return self.proj(states)


def spoken(n: int = 16) -> Any:
    """Three different symbols, each heard for four frames."""
    symbols = torch.stack([torch.randperm(4)[:3] for _ in range(n)]) + 1
    return F.one_hot(symbols.repeat_interleave(4, 1), 5) + 0.1 * torch.randn(n, 12, 5), symbols


@planted("logits where probabilities are expected", "", "proj")
def ctc_of_logits() -> Setup:
    """nn.CTCLoss is given logits without log_softmax: its value may be negative, and its gradient is wrong (forum)."""
    model = SpeechNet()
    ctc = nn.CTCLoss(blank=0)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(12):
            x, symbols = spoken()
            out = model(x).transpose(0, 1)
            loss = ctc(out, symbols, torch.full((16,), 12), torch.full((16,), 3))
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("targets never vary", "", hard=True)
def argmax_of_index_labels() -> Setup:
    """Labels of shape (n, 1) go through argmax(1), a leftover of one-hot labels: all become class 0 (forum)."""
    model = SmallCNN()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        images, labels = stripes(96)
        loader = DataLoader(TensorDataset(images, labels.unsqueeze(1)), batch_size=24, shuffle=True)
        for _ in range(3):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y.argmax(1))
                opt.zero_grad()
                loss.backward()
                opt.step()

    return model, run


class TripletNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.embedding = nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        return self.embedding(self.backbone(x))


@planted("loss is maximized", "", hard=True)
def triplet_arguments_swapped() -> Setup:
    """nn.TripletMarginLoss(anchor, negative, positive): the arguments are in a wrong order (forum)."""
    model = TripletNet()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.TripletMarginLoss(margin=1.0)
    centers = torch.randn(3, 10)

    def run() -> None:
        for _ in range(20):
            label = torch.randint(3, (32,))
            anchor = centers[label] + 0.3 * torch.randn(32, 10)
            positive = centers[label] + 0.3 * torch.randn(32, 10)
            negative = centers[(label + 1) % 3] + 0.3 * torch.randn(32, 10)
            loss = criterion(model(anchor), model(negative), model(positive))
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run
