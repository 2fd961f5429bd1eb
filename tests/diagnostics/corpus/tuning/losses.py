"""Losses that do not measure what was meant."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.register import planted
from tests.diagnostics.corpus.tuning._data import LETTERS, blobs, digits, line, loader, text, two_classes, waves


class IrisNet(nn.Module):
    def __init__(self, in_features: int = 10, n_classes: int = 3) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, 24)
        self.fc2 = nn.Linear(24, 24)
        self.out = nn.Linear(24, n_classes)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.softmax(self.out(x))


@planted("probabilities where logits are expected", "", "softmax")
def softmax_before_cross_entropy() -> Setup:
    """The model ends in a softmax, and so does CrossEntropyLoss (forum; DeepFD: wrong activation of the last layer)."""
    model = IrisNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train = loader(*blobs(128))

    def run() -> None:
        for _ in range(2):
            for inputs, labels in train:
                optimizer.zero_grad()
                loss = criterion(model(inputs), labels)
                loss.backward()
                optimizer.step()

    return model, run


class ChurnModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer_1, self.layer_2 = nn.Linear(8, 32), nn.Linear(32, 32)
        self.layer_out = nn.Linear(32, 1)
        self.batchnorm1 = nn.BatchNorm1d(32)

    def forward(self, x: Tensor) -> Any:
        x = self.batchnorm1(torch.relu(self.layer_1(x)))
        x = torch.relu(self.layer_2(x))
        return torch.sigmoid(self.layer_out(x))


@planted("probabilities where logits are expected", "", "layer_out")
def sigmoid_before_bce_with_logits() -> Setup:
    """The output is a probability, and BCEWithLogitsLoss takes its sigmoid once more (forum)."""
    model = ChurnModel()
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = two_classes(160)

    def run() -> None:
        model.train()
        for xb, yb in loader(x, y, batch_size=16):
            optimizer.zero_grad()
            loss = criterion(model(xb), yb.unsqueeze(1))
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            (model(x).squeeze(1) > 0.5).float().eq(y).float().mean()

    return model, run


@planted("logits where probabilities are expected", "", "4")
def nll_without_log_softmax() -> Setup:
    """NLLLoss gets the last layer's output without log_softmax, so the loss falls below zero (forum)."""
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def run() -> None:
        for _ in range(15):
            data, target = blobs(32)
            opt.zero_grad()
            F.nll_loss(model(data), target).backward()
            opt.step()

    return model, run


@planted("loss broadcasts predictions against targets", "", "4")
def mse_of_column_and_row() -> Setup:
    """The prediction is (n, 1) and the target (n,): MSELoss compares each with each (TrainCheck; forum)."""
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
    mse = nn.MSELoss()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)

    def run() -> None:
        for features, price in loader(*line(192), batch_size=16):
            loss = mse(net(features), price)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return net, run


class Forecaster(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Any:
        out, _ = self.lstm(x)
        return self.linear(out[:, -1])


@planted("loss broadcasts predictions against targets", "", "linear")
def own_huber_loss_broadcasts() -> Setup:
    """A hand-written Huber loss subtracts a row from a column, without a warning from PyTorch (forum)."""
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def huber(prediction: Tensor, target: Tensor, delta: float = 1.0) -> Tensor:
        error = (target - prediction).abs()
        return torch.where(error < delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean()

    def run() -> None:
        for _ in range(12):
            window, following = waves(24)
            optimizer.zero_grad()
            huber(model(window), following).backward()
            optimizer.step()

    return model, run


class ConvAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 12)
        )
        self.decoder = nn.Sequential(
            nn.Linear(12, 128),
            nn.ReLU(),
            nn.Unflatten(1, (8, 4, 4)),
            nn.ConvTranspose2d(8, 1, 2, stride=2),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Any:
        return self.decoder(self.encoder(x))


@planted("targets cannot be reached by the output", "", "decoder", "decoder.4")
def sigmoid_against_standardized_images() -> Setup:
    """The decoder ends in a sigmoid, but images were normalized to mean 0 and std 1 (forum)."""
    model = ConvAutoencoder()
    images = digits(128)
    images = (images - images.mean()) / images.std()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(2):
            for (image,) in loader(images, batch_size=16):
                loss = F.mse_loss(model(image), image)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return model, run


@planted("targets cannot be reached by the output", "", "5")
def relu_on_the_output_of_a_regression() -> Setup:
    """The activation follows the last layer too, and half of the targets are negative (DeepFD: last activation)."""
    model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1), nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.L1Loss()

    def run() -> None:
        x, y = line(256)
        for epoch in range(16):
            idx = torch.randperm(256)[:32]
            optimizer.zero_grad()
            loss = loss_fn(model(x[idx]).squeeze(-1), y[idx])
            loss.backward()
            optimizer.step()
            if epoch % 8 == 7:
                with torch.no_grad():
                    loss_fn(model(x).squeeze(-1), y)

    return model, run


@planted("loss is negative but cannot be", "")
def bce_with_labels_minus_one_and_one() -> Setup:
    """Labels are -1 and 1, as for an SVM, but the loss is binary cross entropy (forum)."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(20):
            x, y = two_classes(32)
            y = 2 * y - 1
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(x).flatten(), y).backward()
            optimizer.step()

    return model, run


@planted("loss is negative but cannot be", "", "student")
def kl_of_probabilities() -> Setup:
    """kl_div gets the student's probabilities instead of their logarithms (forum: negative KL divergence)."""
    teacher = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)).eval().requires_grad_(False)
    student = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 5))
    pair = nn.ModuleDict({"teacher": teacher, "student": student})
    optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(15):
            x, _ = blobs(32)
            with torch.no_grad():
                wanted = (4 * teacher(x)).softmax(-1)
            got = student(x).softmax(-1)
            loss = F.kl_div(got, wanted, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return pair, run


class CRNN(nn.Module):
    def __init__(self, alphabet: int = 6) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 16, 3, padding=1)
        self.rnn = nn.GRU(16, 16, bidirectional=True)
        self.classifier = nn.Linear(32, alphabet)

    def forward(self, x: Tensor) -> Any:
        features = F.relu(self.conv(x)).permute(2, 0, 1)
        out, _ = self.rnn(features)
        return self.classifier(out)


@planted("logits where probabilities are expected", "", "classifier")
def ctc_without_log_softmax() -> Setup:
    """CTCLoss expects log-probabilities, and gets the classifier's output (forum: CTC loss is negative)."""
    model = CRNN()
    ctc = nn.CTCLoss(blank=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(10):
            targets = torch.randint(1, 6, (8, 4))
            x = F.one_hot(targets, 6).float().repeat_interleave(4, dim=1).transpose(1, 2)
            x = x + 0.1 * torch.randn_like(x)
            out = model(x)
            loss = ctc(out, targets, torch.full((8,), 16), torch.full((8,), 4))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


@planted("label smoothing hides the labels", "")
def label_smoothing_of_090() -> Setup:
    """Smoothing is 0.9, by somebody who took it for the weight of the right class (forum)."""
    model = nn.Sequential(nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    train = loader(*blobs(192), batch_size=24)

    def run() -> None:
        for _ in range(2):
            for x, y in train:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()

    return model, run


class CharGRU(nn.Module):
    def __init__(self, vocab: int = LETTERS, dim: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.gru(self.embed(ids))[0])


@planted("loss has no targets left", "")
def every_label_is_ignored() -> Setup:
    """The mask of what to predict is inverted, so every label is -100 and the loss NaN (forum: fine-tuning)."""
    model = CharGRU()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(6):
            x, y = text(8)
            attention_mask = torch.ones_like(x)
            labels = y.masked_fill(attention_mask == 1, -100)
            loss = F.cross_entropy(model(x).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


@planted("targets are the inputs", "")
def language_model_without_shift() -> Setup:
    """The labels are the input tokens, and nothing shifts them: the model learns to copy (forum)."""
    model = CharGRU()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    criterion = nn.CrossEntropyLoss()

    def run() -> None:
        for _ in range(15):
            x, _ = text(16)
            logits = model(x)
            loss = criterion(logits.view(-1, LETTERS), x.view(-1))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    return model, run


@planted("targets never vary", "")
def labels_never_filled_in() -> Setup:
    """The labels' buffer is allocated with zeros, and the loop that should fill it is missing (forum)."""
    x, _ = two_classes(160)
    labels = torch.zeros(160)
    model = ChurnModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.BCELoss()

    def run() -> None:
        for features, target in loader(x, labels):
            optimizer.zero_grad()
            loss = criterion(model(features).squeeze(1), target)
            loss.backward()
            optimizer.step()

    return model, run


@planted("loss grows with the batch", "")
def sum_of_squares_with_the_usual_rate() -> Setup:
    """reduction="sum" over a batch of 256 with a learning rate chosen for the mean (forum)."""
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
    criterion = nn.MSELoss(reduction="sum")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(12):
            x, y = line(256)
            optimizer.zero_grad()
            loss = criterion(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()

    return model, run


@planted("loss is maximized", "")
def log_likelihood_without_minus() -> Setup:
    """The hand-written log-likelihood is minimized: the minus is missing (forum)."""
    net = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)

    def log_likelihood(logits: Tensor, target: Tensor) -> Tensor:
        return logits.log_softmax(-1).gather(1, target[:, None]).mean()

    def run() -> None:
        for inputs, target in loader(*blobs(320), batch_size=16):
            loss = log_likelihood(net(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return net, run


class EmbeddingNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.PReLU(), nn.Linear(32, 8))

    def forward(self, x: Tensor) -> Any:
        return F.normalize(self.trunk(x), dim=-1)


@planted("loss is maximized", "", hard=True)
def positive_and_negative_swapped() -> Setup:
    """The sampler returns (anchor, negative, positive), the loss takes (anchor, positive, negative) (forum)."""
    model = EmbeddingNet()
    criterion = nn.TripletMarginLoss(margin=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def sample() -> tuple[Tensor, Tensor, Tensor]:
        x, y = blobs(90)
        groups = [x[y == k] for k in range(2)]
        n = min(len(group) for group in groups) // 2
        return groups[0][:n], groups[1][:n], groups[0][n : 2 * n]

    def run() -> None:
        for _ in range(20):
            anchor, positive, negative = sample()
            optimizer.zero_grad()
            criterion(model(anchor), model(positive), model(negative)).backward()
            optimizer.step()

    return model, run


@planted("loss scaled by a wrong factor", "", hard=True)
def mean_divided_by_the_data_set() -> Setup:
    """A loss that is a mean already is divided by the number of samples too, so SGD hardly moves (forum)."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    data = two_classes(2048)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def run() -> None:
        for step in range(20):
            x, y = (part[step * 32 : (step + 1) * 32] for part in data)
            loss = F.cross_entropy(model(x), y.long()) / len(data[0])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run
