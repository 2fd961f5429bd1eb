"""Train a small byte-level GPT."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from normscope.blocks.norm.norm_spec import TEXT_NORMS
from normscope.data.batches import Batches, windows
from normscope.errors import NonFiniteError
from normscope.lab.trials.measuring import step_count, timed, training_flops, training_metrics
from normscope.lab.trials.text_sources import ByteCorpus, load_text
from normscope.models.gpt import GPT
from normscope.models.presets import preset
from normscope.training.config import TrainConfig
from normscope.training.trainer import Trainer
from normscope.training.validation import evaluate

SMALL_GPT: Mapping[str, Any] = {
    "text": "stories",
    "preset": "llama",
    "model": {"depth": 2, "width": 48, "heads": 4, "kv_heads": 4, "context": 64},
    "batch": 8,
    "steps": 200,
    "lr": 3e-3,
    "warmup": 0.1,
}
"""Default settings of `train_text`, which variants override."""
NARROW: Mapping[str, Any] = {"width": 32, "heads": 2, "kv_heads": 2, "context": 32}
"""Model options for deep models, or many: small enough to be affordable."""
PLACEHOLDER_CORPUS = ByteCorpus(np.zeros(0, np.uint8), np.zeros(0, np.uint8), vocab_size=64)
"""Used before the text is read: a model only needs its vocabulary size."""


def small_gpt(steps: int, model: Mapping[str, Any] = SMALL_GPT["model"], **options: Any) -> dict[str, Any]:
    """Return the settings of a small GPT: its model config with these options, and the number of steps.

    >>> small_gpt(100, NARROW, depth=6)["model"]
    {'width': 32, 'heads': 2, 'kv_heads': 2, 'context': 32, 'depth': 6}
    """
    return {**SMALL_GPT, "model": {**model, **options}, "steps": steps}


def train_text(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Train, and measure the loss on held-out text.

    Settings:
        text, preset, model: the corpus, a model preset and its overrides.
        batch, steps, lr, warmup: of AdamW, with one learning rate for all weights.
        grad_clip: maximum global gradient norm; None disables clipping.
        flops: take as many steps as this compute budget allows, instead of `steps`.
        init_scale: factor on all initial matrices.
        norm_warmup: steps in which PowerNorm divides by the batch's own statistic.

    Metrics:
        loss: nats per byte on held-out text. A model that diverged, or is worse than a uniform guess, ln(vocab_size),
            counts as one.
        diverged: whether it became non-finite.
        guessing: whether it counts as a uniform guess.
        curve: smoothed training loss.
        parameters, flops, steps, seconds_per_step: costs.
    """
    text = load_text(settings["text"])
    flops = _flops_per_step(json.dumps({name: settings[name] for name in ("text", "preset", "model", "batch")}))
    model = build_gpt(settings, text, seed)
    context, batch = model.config.context, int(settings["batch"])
    batches = Batches(text.train, context, batch, seed)
    steps = step_count(settings, flops)
    trainer = Trainer(model, training_config(settings, steps, seed), batches)
    losses, times = timed(_finite_losses(trainer, steps))
    uniform_loss, found = math.log(text.vocab_size), math.nan
    if len(losses) == steps:
        found = evaluate(model, windows(text.validation, context, 4 * batch), 1.0).loss
    guessing = not found < uniform_loss  # also if it is NaN
    return {
        "loss": uniform_loss if guessing else found,
        "diverged": not math.isfinite(found),
        "guessing": guessing,
        **training_metrics(model, losses, times, steps, flops, uniform_loss),
    }


def _finite_losses(trainer: Trainer, steps: int) -> Iterator[float]:
    """Train, yielding the loss of each step; stop at a non-finite one."""
    with suppress(NonFiniteError):
        for _ in range(steps):
            yield trainer.step().loss


@cache
def _flops_per_step(settings: str) -> int:
    """Count once per shape, on a separate model: counting takes as long as several steps."""
    shape = json.loads(settings)
    text = load_text(shape["text"])
    model = build_gpt(shape, text, seed=0)
    inputs, targets = Batches(text.train, model.config.context, int(shape["batch"]), seed=0).batch(0)
    return training_flops(lambda: model.loss(torch.from_numpy(inputs), torch.from_numpy(targets)))


def training_config(settings: Mapping[str, Any], steps: int, seed: int) -> TrainConfig:
    """Build the training config: AdamW, with one learning rate for all weights."""
    return TrainConfig(
        steps=steps,
        batch=int(settings["batch"]),
        optimizer="adamw",
        matrix_lr=settings["lr"],
        lr=settings["lr"],
        warmup=settings["warmup"],
        beta1=0.9,
        grad_clip=settings.get("grad_clip", 1.0),
        seed=seed,
        device="cpu",
        precision="float32",
    )


def build_gpt(settings: Mapping[str, Any], text: ByteCorpus, seed: int) -> GPT:
    """Build and initialize the model."""
    torch.manual_seed(seed)
    changes = dict(settings["model"])
    if settings.get("norm_warmup"):
        changes["norm"] = replace(TEXT_NORMS[changes["norm"]], warmup=settings["norm_warmup"])
    model = GPT(preset(settings["preset"], vocab_size=text.vocab_size, **changes))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() >= 2:
                weight.mul_(settings.get("init_scale", 1.0))
    return model


def build_on_meta(settings: Mapping[str, Any]) -> GPT:
    """Build the model of a variant on the meta device."""
    with torch.device("meta"):
        return build_gpt({**settings, "init_scale": 1.0}, PLACEHOLDER_CORPUS, seed=0)
