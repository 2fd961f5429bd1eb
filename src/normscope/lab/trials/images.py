"""Training a small network on scikit-learn's bundled digits: 1,797 images of 8 x 8 pixels, in ten classes."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.errors import ConfigError
from normscope.lab.trials.measuring import step_count, timed, training_flops, training_metrics
from normscope.models.convnet import ConvNet, ConvNetConfig
from normscope.models.vit import ViT, ViTConfig
from normscope.training.schedule import LRSchedule

HELD_OUT = 397
CLASSES, SIZE = 10, 8
SPLIT = 0
"""Seed of the fixed train/test split."""
UNIFORM_LOSS = math.log(CLASSES)


@dataclass(frozen=True)
class Digits:
    """Standardized images (n, 1, 8, 8) and their labels, for training and for testing."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def batch(self, number: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return batch `number`; each epoch has its own order, determined by the seed."""
        batches = len(self.images) // size
        epoch, index = divmod(number, batches)
        order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(len(self.images)))
        chosen = order[index * size : (index + 1) * size]
        return self.images[chosen], self.labels[chosen]


def load_digits() -> Digits:
    """Load the digits with a fixed split.

    With another split per seed, the test images of two seeds would overlap. Their losses would be correlated, and an
    interval that assumes independence would be too narrow.
    """
    images, labels = _all()
    order = torch.from_numpy(np.random.default_rng(SPLIT).permutation(len(images)))
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    return Digits(images[train], labels[train], images[test], labels[test])


@cache
def _all() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits as bundled
    except ImportError:
        raise ConfigError("the digits dataset needs scikit-learn\nfix: pip install 'normscope[lab]'") from None
    found = bundled()
    images = torch.from_numpy(found.images).float()[:, None]
    return (images - images.mean()) / images.std(), torch.from_numpy(found.target)


class HeldOutMetrics(NamedTuple):
    """Held-out loss in nats, error rate, and whether the model is no better than a uniform guess."""

    loss: float
    error: float
    guessing: bool


UNIFORM_GUESS = HeldOutMetrics(UNIFORM_LOSS, 1 - 1 / CLASSES, guessing=True)


def small_convnet(steps: int, norm: str) -> dict[str, Any]:
    """Return the settings of a small convnet with this norm."""
    model = {"kind": "convnet", "widths": [16, 32, 64], "norm": norm}
    return {"model": model, "batch": 32, "steps": steps, "optimizer": "sgd"}


def train_images(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Train, and measure loss and error rate on held-out images.

    Settings:
        model: kind, convnet or vit, and config.
        batch, steps, lr: of the optimizer.
        micro_batch: images per forward pass, with gradient accumulation; the whole batch by default. Only layers that
            read several images at once, such as BatchNorm, are affected.
        optimizer: sgd, with momentum 0.9; plain sgd, without momentum at a constant learning rate; or adamw.
        warmup: share of the steps with a rising learning rate; 0 by default.
        flops: take as many steps as this compute budget allows, instead of `steps`.

    Metrics:
        loss, error: on held-out images, in nats and as a share. A model that diverged, or is worse than a uniform
            guess, counts as one.
        guessing: whether it counts as a uniform guess.
        train_loss: mean over the last tenth of the steps.
        diverged, curve, parameters, flops, steps, seconds_per_step: as in `train_text`.
    """
    flops = _flops_per_step(json.dumps(settings["model"]), int(settings["batch"]))
    torch.manual_seed(seed)
    digits = load_digits()
    model = build_network(settings["model"])
    steps = step_count(settings, flops)
    losses, times = timed(train_steps(model, digits, settings, steps, seed))
    diverged = len(losses) < steps
    found = UNIFORM_GUESS if diverged else evaluate_digits(model, digits)
    last = losses[-max(1, steps // 10) :]
    return {
        **found._asdict(),
        "train_loss": UNIFORM_LOSS if diverged else min(UNIFORM_LOSS, sum(last) / len(last)),
        "diverged": diverged,
        **training_metrics(model, losses, times, steps, flops, UNIFORM_LOSS),
    }


@cache
def _flops_per_step(config: str, batch: int) -> int:
    """Count once per shape, on a separate network: counting takes as long as several steps."""
    model = build_network(json.loads(config))
    images, labels = load_digits().batch(0, batch, seed=0)
    return training_flops(lambda: F.cross_entropy(model(images), labels))


def build_network(config: Mapping[str, Any]) -> nn.Module:
    """Build a network for the digits."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}
    settings: dict[str, Any] = {**given, "image_size": SIZE, "channels": 1, "classes": CLASSES}
    match settings.pop("kind"):
        case "convnet":
            return ConvNet(ConvNetConfig(**settings))
        case "vit":
            return ViT(ViTConfig(**settings))
        case kind:
            raise ConfigError(f"unknown kind of network {kind!r}\nfix: convnet or vit")


def train_steps(
    model: nn.Module, digits: Digits, settings: Mapping[str, Any], steps: int, seed: int
) -> Iterator[float]:
    """Train, yielding the loss of each step; stop at a non-finite one."""
    batch, lr, kind = int(settings["batch"]), float(settings["lr"]), settings["optimizer"]
    micro_batch = int(settings.get("micro_batch", batch))
    optimizer: torch.optim.Optimizer
    if kind == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9 if kind == "sgd" else 0.0)
    shape: Literal["constant", "linear"] = "constant" if kind == "plain sgd" else "linear"
    schedule = LRSchedule(steps, shape, warmup=settings.get("warmup", 0.0))
    model.train()
    for step in range(steps):
        images, labels = digits.batch(step, batch, seed)
        for group in optimizer.param_groups:
            group["lr"] = lr * schedule.lr_scale(step)
        optimizer.zero_grad()
        value = 0.0
        for part, answers in zip(images.split(micro_batch), labels.split(micro_batch), strict=True):
            loss: Tensor = F.cross_entropy(model(part), answers, reduction="sum") / batch
            loss.backward()
            value += loss.item()
        if not math.isfinite(value):
            return
        optimizer.step()
        yield value


def evaluate_digits(model: nn.Module, digits: Digits) -> HeldOutMetrics:
    """Evaluate in eval mode; the loss is at most that of a uniform guess."""
    model.eval()
    with torch.inference_mode():
        logits = model(digits.test_images)
        loss = F.cross_entropy(logits, digits.test_labels).item()
        error = (logits.argmax(dim=1) != digits.test_labels).float().mean().item()
    model.train()
    guessing = not loss < UNIFORM_LOSS  # also if it is NaN
    return HeldOutMetrics(UNIFORM_LOSS if guessing else loss, error, guessing)
