"""Training a small network on the digits."""

import json
import math
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.errors import ConfigError
from normscope.lab.trials.digits import CLASSES, SIZE, Digits, load_digits
from normscope.lab.trials.training_metrics import step_count, training_flops, training_metrics
from normscope.models.convnet import ConvNet, ConvNetConfig
from normscope.models.vit import ViT, ViTConfig
from normscope.training.schedule import LRSchedule

UNIFORM_LOSS = math.log(CLASSES)


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
        batch, steps, lr: of SGD with momentum 0.9, or of AdamW.
        micro_batch: images per forward pass, with gradient accumulation; the whole batch by default. Only layers that
            read several images at once, such as BatchNorm, are affected.
        optimizer: sgd or adamw.
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
    losses, times = fit(model, digits, settings, steps, seed)
    diverged = len(losses) < steps
    found = UNIFORM_GUESS if diverged else evaluate_digits(model, digits)
    last = losses[-max(1, steps // 10) :]
    return {
        **found._asdict(),
        "train_loss": UNIFORM_LOSS if diverged else min(UNIFORM_LOSS, sum(last) / len(last)),
        "diverged": diverged,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "flops": flops * steps,
        "steps": steps,
        **training_metrics(losses, times, UNIFORM_LOSS),
    }


@cache
def _flops_per_step(config: str, batch: int) -> int:
    """Count once per shape, on a separate network: counting takes as long as several steps."""
    model = build_network(json.loads(config))
    images, labels = load_digits().batch(0, batch, seed=0)
    return training_flops(lambda: F.cross_entropy(model(images), labels))


def build_network(config: Mapping[str, Any]) -> nn.Module:
    """Build a network for the digits."""
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in config.items()
    }
    kind = settings.pop("kind")
    common: dict[str, Any] = {"image_size": SIZE, "channels": 1, "classes": CLASSES}
    if kind == "convnet":
        return ConvNet(ConvNetConfig(**common, **settings))
    if kind == "vit":
        return ViT(ViTConfig(**common, **settings))
    raise ConfigError(f"unknown kind of network {kind!r}\nfix: convnet or vit")


def fit(
    model: nn.Module, digits: Digits, settings: Mapping[str, Any], steps: int, seed: int
) -> tuple[list[float], list[float]]:
    """Train; return the losses, up to the first non-finite one, and the seconds of each step."""
    batch, lr = int(settings["batch"]), float(settings["lr"])
    micro_batch = int(settings.get("micro_batch", batch))
    weights = list(model.parameters())
    optimizer: torch.optim.Optimizer
    if settings["optimizer"] == "sgd":
        optimizer = torch.optim.SGD(weights, lr=lr, momentum=settings.get("momentum", 0.9))
    else:
        optimizer = torch.optim.AdamW(weights, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    schedule = LRSchedule(steps, warmup=settings.get("warmup", 0.0))
    losses: list[float] = []
    times: list[float] = []
    model.train()
    for step in range(steps):
        start = time.perf_counter()
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
            break
        optimizer.step()
        losses.append(value)
        times.append(time.perf_counter() - start)
    return losses, times


def evaluate_digits(model: nn.Module, digits: Digits) -> HeldOutMetrics:
    """Evaluate in eval mode; the loss is at most that of a uniform guess."""
    model.eval()
    with torch.inference_mode():
        logits = model(digits.test_images)
        loss = F.cross_entropy(logits, digits.test_labels).item()
        error = (logits.argmax(dim=1) != digits.test_labels).float().mean().item()
    model.train()
    return (
        HeldOutMetrics(loss, error, guessing=False)
        if loss < UNIFORM_LOSS
        else HeldOutMetrics(UNIFORM_LOSS, error, guessing=True)
    )
