"""Optimizers with wrong parameters or settings."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Run, Setup
from tests.diagnostics.corpus.register import planted
from tests.diagnostics.corpus.tuning._data import LETTERS, bars, blobs, digits, line, loader, text


def classification(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 15) -> Run:
    """The everyday loop on clusters."""

    def run() -> None:
        model.train()
        for _ in range(steps):
            x, y = blobs(32)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

    return run


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


class Backbone(nn.Module):
    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.layers(x))


@planted("parameters are not in the optimizer", "fc", "")
def head_replaced_after_the_optimizer() -> Setup:
    """The optimizer is made first, then model.fc is replaced for the new classes (forum: transfer learning)."""
    model = Backbone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model.fc = nn.Linear(64, 4)

    def run() -> None:
        for images, labels in loader(*bars(192)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()

    return model, run


@planted("parameters are not in the optimizer", "")
def optimizer_of_a_copy() -> Setup:
    """The optimizer was made before copy.deepcopy, and the loop trains the copy (TrainCheck; forum)."""
    first = mlp()
    optimizer = torch.optim.Adam(first.parameters(), lr=3e-3)
    model = copy.deepcopy(first)
    return model, classification(model, optimizer)


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x: Tensor) -> Any:
        return self.decoder(self.encoder(x)).view_as(x)


@planted("parameters are not in the optimizer", "decoder", "decoder.0", "decoder.2", "", hard=True)
def encoder_added_twice_decoder_never() -> Setup:
    """Parameters of both parts are collected, but a copied line names the encoder twice (forum)."""
    model = EncoderDecoder()
    params = list(dict.fromkeys([*model.encoder.parameters(), *model.encoder.parameters()]))
    optimizer = torch.optim.Adam(params, lr=3e-3)

    def run() -> None:
        for (x,) in loader(digits(192)):
            loss = F.binary_cross_entropy(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


@planted("learning rate is too small", "")
def sgd_with_lr_of_1e_minus_7() -> Setup:
    """SGD with lr=1e-7, copied from a fine-tuning recipe with Adam (AUTOTRAINER: slow convergence)."""
    model = Backbone(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)

    def run() -> None:
        for _ in range(2):
            for x, y in loader(*bars(128)):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

    return model, run


class TinyTransformer(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, dim)
        self.position = nn.Parameter(0.02 * torch.randn(16, dim))
        layer = nn.TransformerEncoderLayer(dim, 2, 2 * dim, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.unembed = nn.Linear(dim, LETTERS)

    def forward(self, ids: Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.embed(ids) + self.position[: ids.shape[1]]
        return self.unembed(self.layers(x, mask=mask, is_causal=True))


def on_text(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 10) -> Run:
    def run() -> None:
        for _ in range(steps):
            x, y = text(8)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


@planted("learning rate is too large", "")
def adam_with_lr_of_one_half() -> Setup:
    """Adam with lr=0.5, as for SGD, on a transformer (AUTOTRAINER and DeepFD: learning rate; forum: loss jumps)."""
    model = TinyTransformer()
    return model, on_text(model, torch.optim.Adam(model.parameters(), lr=0.5), 12)


@planted("learning rate is too small", "")
def schedule_decayed_to_zero_before_it_begins() -> Setup:
    """A warmup of `step / warmup` counted in epochs by integer division: the rate stays 0 (forum: LambdaLR)."""
    model = TinyTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step // 1000))

    def run() -> None:
        for _ in range(10):
            x, y = text(8)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()

    return model, run


@planted("weight decay dominates", "")
def weight_decay_of_ten() -> Setup:
    """AdamW with weight_decay=10 at lr=0.03: nearly a third of each weight is taken away per step (forum)."""
    model = mlp()
    return model, classification(model, torch.optim.AdamW(model.parameters(), lr=0.03, weight_decay=10.0), 20)


@planted("eps of the optimizer dominates", "")
def adam_with_eps_of_one() -> Setup:
    """Adam with eps=1.0, a setting for Inception that outlived it, with gradients of 1e-2 (forum)."""
    model = TinyTransformer()
    return model, on_text(model, torch.optim.Adam(model.parameters(), lr=1e-3, eps=1.0))


@planted("updates are lost to rounding", "")
def bfloat16_weights_under_small_steps() -> Setup:
    """Weights are bfloat16 without a float32 copy: steps of 1e-5 round to nothing (forum: pure bf16 training)."""
    model = TinyTransformer().to(torch.bfloat16)
    return model, on_text(model, torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0))


@planted("learning rate is too large", "", hard=True)
def momentum_of_0999() -> Setup:
    """SGD with momentum 0.999 instead of 0.9: steps add up to a hundred times more (forum)."""
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.999)

    def run() -> None:
        for _ in range(30):
            x, y = line(32)
            optimizer.zero_grad()
            F.mse_loss(model(x).squeeze(1), y).backward()
            optimizer.step()

    return model, run


class Bottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(32, 4), nn.Linear(4, 32)

    def forward(self, x: Tensor) -> Any:
        return x + self.up(F.relu(self.down(x)))


class WithAdapters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(10, 32)
        self.adapters = nn.ModuleList(Bottleneck() for _ in range(2))
        self.classifier = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.stem(x))
        for adapter in self.adapters:
            x = adapter(x)
        return self.classifier(x)


@planted("optimizer holds other parameters", "classifier", "")
def filter_by_name_misses_the_classifier() -> Setup:
    """Adapters and head should train; the filter looks for "head", and the layer is called classifier (forum)."""
    model = WithAdapters()
    model.stem.requires_grad_(False)
    chosen = [p for name, p in model.named_parameters() if "adapter" in name or "head" in name]
    return model, classification(model, torch.optim.AdamW(chosen, lr=3e-3))


class PostNorm(nn.Module):
    def __init__(self, dim: int = 48, depth: int = 6) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(LETTERS, dim), nn.Embedding(16, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.out = nn.Linear(dim, LETTERS)

    def forward(self, ids: Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.out(self.encoder(self.embed(ids) + self.position(torch.arange(ids.shape[1])), mask=mask))


@planted("no warmup", "", "encoder", hard=True)
def post_norm_at_full_rate_from_the_start() -> Setup:
    """Six post-norm layers under Adam at 0.01 without warmup stay at the letters' frequencies (Xiong et al.; forum)."""
    model = PostNorm()
    return model, on_text(model, torch.optim.Adam(model.parameters(), lr=0.01), 15)
