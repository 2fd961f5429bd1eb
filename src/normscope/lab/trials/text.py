"""Training a small GPT on text, byte by byte."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from normscope.blocks.norm.spec import TEXT_NORMS
from normscope.data.batches import Batches, windows
from normscope.errors import NonFiniteError
from normscope.lab.trials.curves import thinned
from normscope.lab.trials.flops import training_flops
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
"""What trials on text start from: settings of `train_text`, each of which a variant may replace."""

TEXT_MARGIN = 0.03
"""Nats a byte: about what a tenth more steps bring in so short a training. Whoever chooses a norm, an activation or a
wiring would not notice less, so for claims on text less is neither worse nor better."""


def train_text(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Train, and measure the loss on text that was held out.

    Settings:
        text, preset, model: what is learnt from and by whom: a preset, and what it is changed in.
        batch, steps, rate, warmup: how; the rate is that of all weights, by AdamW.
        clip: the largest norm of all gradients together; None for any.
        flops: if given, as many steps as this amount of work allows, in the place of `steps`.
        scale: what all first weights of matrices are multiplied with.
        norm_warmup: for how many steps PowerNorm divides by the batch's own statistic.

    Figures:
        loss: nats a byte on the held-out text. A model that knows nothing has ln(number of bytes), and one that
            stopped being finite, or is worse than that, counts as knowing nothing.
        diverged: whether it stopped being finite.
        guessing: whether the loss is that of knowing nothing, by either way.
        curve: the loss while training, smoothed.
        parameters, flops, steps, seconds_a_step: what it took.
    """
    text = load_text(settings["text"])
    flops = _flops_of_a_step(json.dumps({name: settings[name] for name in ("text", "preset", "model", "batch")}))
    model = build_gpt(settings, text, seed)
    context, batch = model.config.context, int(settings["batch"])
    batches = Batches(text.train, context, batch, seed)
    steps = int(settings["steps"]) if "flops" not in settings else max(1, round(settings["flops"] / flops))
    trainer = Trainer(model, training_config(settings, steps, seed), batches)
    losses, times, diverged = [], [], False
    for _ in range(steps):
        start = time.perf_counter()
        try:
            losses.append(trainer.step().loss)
        except NonFiniteError:
            diverged = True
            break
        times.append(time.perf_counter() - start)
    chance = math.log(text.vocab_size)
    found = math.nan if diverged else evaluate(model, windows(text.validation, context, 4 * batch), 1.0).loss
    guessing = not found < chance  # neither is what is not a number
    return {
        "loss": chance if guessing else found,
        "diverged": not math.isfinite(found),
        "guessing": guessing,
        "curve": thinned([min(loss, 2 * chance) for loss in losses]),
        "parameters": model.parameter_count(),
        "flops": flops * steps,
        "steps": steps,
        "seconds_per_step": sorted(times)[len(times) // 2] if times else 0.0,
    }


@cache
def _flops_of_a_step(settings: str) -> int:
    """Counted once for a shape, on a model of its own: counting takes as long as several steps."""
    shape = json.loads(settings)
    text = load_text(shape["text"])
    model = build_gpt(shape, text, seed=0)
    inputs, targets = Batches(text.train, model.config.context, int(shape["batch"]), seed=0).batch(0)
    return training_flops(lambda: model.loss(torch.from_numpy(inputs), torch.from_numpy(targets)))


def training_config(settings: Mapping[str, Any], steps: int, seed: int) -> TrainConfig:
    """How these settings train: AdamW, with one rate for all weights."""
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
    """The model of these settings, with its first weights."""
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
