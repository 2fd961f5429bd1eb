"""Optimizers that hold other parameters, or whose settings do not fit."""

import copy
import math
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


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6))
        self.decoder = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))


@planted("parameters are not in the optimizer", "", "decoder", "decoder.0", "decoder.2")
def only_the_encoder_in_the_optimizer() -> Setup:
    """The optimizer was made from encoder.parameters(), so the decoder never learns (forum)."""
    model = EncoderDecoder()
    opt = torch.optim.Adam(model.encoder.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            x, _ = blobs()
            loss = F.mse_loss(model(x), x)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("parameters are not in the optimizer", "", "fc")
def head_replaced_after_optimizer() -> Setup:
    """For transfer learning the head is replaced after the optimizer was made, which steps the old one (forum)."""
    model = SmallCNN(classes=10)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model.fc = nn.Linear(model.fc.in_features, 3)

    def run() -> None:
        model.train()
        for _ in range(10):
            x, y = stripes()
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()

    return model, run


@planted("optimizer holds other parameters", "")
def optimizer_of_a_copy() -> Setup:
    """The model is deep-copied for safekeeping, but the optimizer gets the copy's parameters (TrainCheck; forum)."""
    model = TinyGPT()
    backup = copy.deepcopy(model)
    opt = torch.optim.AdamW(backup.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(8):
            x, y = chars()
            loss = F.cross_entropy(model(x).transpose(1, 2), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("learning rate is too large", "")
def adam_with_rate_one() -> Setup:
    """Adam(lr=1.0), a value which SGD might have borne (DeepFD: learning rate out of common range)."""
    model = SequenceClassifier()
    opt = torch.optim.Adam(model.parameters(), lr=1.0)

    def run() -> None:
        for _ in range(15):
            x, y = melodies()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("learning rate is too small", "")
def rate_of_a_billionth() -> Setup:
    """AdamW(lr=1e-9) (AUTOTRAINER: slow convergence; a typo of 1e-3)."""
    model = SmallCNN()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-9)

    def run() -> None:
        images, labels = stripes(96)
        for _ in range(4):
            for x, y in DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True):
                opt.zero_grad()
                F.cross_entropy(model(x), y).backward()
                opt.step()

    return model, run


@planted("weight decay dominates", "")
def weight_decay_of_one() -> Setup:
    """SGD(lr=0.1, momentum=0.9, weight_decay=1.0): decay is stronger than what the loss asks for (forum)."""
    model = dense(10, 48, 48, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1.0)

    def run() -> None:
        for _ in range(30):
            x, y = blobs()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("eps of the optimizer dominates", "")
def adam_with_eps_one() -> Setup:
    """Adam(eps=1.0), found in an example for another framework: steps shrink to lr times the gradient (forum)."""
    model = dense(1, 64, 64, 1)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1.0)

    def run() -> None:
        for _ in range(25):
            x, y = waves()
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("updates are lost to rounding", "")
def pure_bfloat16() -> Setup:
    """Weights, gradients and steps are all in bfloat16, with a small learning rate: most updates round to nothing
    (forum)."""
    model = TinyGPT().to(torch.bfloat16)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)

    def run() -> None:
        for _ in range(10):
            x, y = chars()
            logits = model(x)
            loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("learning rate is too small", "")
def cosine_schedule_already_over() -> Setup:
    """Training resumes with a cosine schedule whose last step is reached: the learning rate is 0 (forum)."""
    model = SequenceClassifier(nn.GRU)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    total = 1000
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, (total + step) / total)))
    )

    def run() -> None:
        for _ in range(12):
            x, y = melodies()
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            scheduler.step()

    return model, run


@planted("learning rate is too large", "", hard=True)
def momentum_of_nearly_one() -> Setup:
    """SGD(lr=0.1, momentum=0.999): gradients of a thousand steps add up, the rate that counts is 100 (forum)."""
    model = dense(6, 32, 32, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.999)

    def run() -> None:
        for _ in range(30):
            x, y = houses()
            loss = F.mse_loss(model(x).squeeze(-1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@planted("parameters are not in the optimizer", "", "pos_encoding", hard=True)
def decay_groups_forget_plain_parameters() -> Setup:
    """Parameter groups by kind of module (weights of Linear decay, norms and biases do not) leave out a plain
    nn.Parameter (forum, after minGPT's configure_optimizers)."""

    class PositionalClassifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(3, 16)
            self.pos_encoding = nn.Parameter(torch.randn(10, 16))
            self.norm = nn.LayerNorm(16)
            self.out = nn.Linear(160, 3)

        def forward(self, x: Any) -> Any:
            return self.out(self.norm(F.gelu(self.stem(x) + self.pos_encoding)).flatten(1))

    model = PositionalClassifier()
    decay = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    no_decay = [m.bias for m in model.modules() if isinstance(m, nn.Linear | nn.LayerNorm)]
    no_decay += [m.weight for m in model.modules() if isinstance(m, nn.LayerNorm)]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}], lr=1e-3
    )

    def run() -> None:
        for _ in range(12):
            x, y = melodies()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run
