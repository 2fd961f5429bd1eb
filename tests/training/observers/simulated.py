"""A simulated run: seeded events of a few hundred steps, of every kind."""

import math
from collections.abc import Iterator

import numpy as np

from normscope.runs.events import (
    CheckpointEvent,
    FinishedEvent,
    NoticeEvent,
    RunEvent,
    SampleEvent,
    SignalEvent,
    StartedEvent,
    StepEvent,
    ValidationEvent,
)

VOCABULARY, BYTES_PER_TOKEN, FLOOR = 65, 1.5, 0.8
FLOOR_NATS = FLOOR * math.log(2) * BYTES_PER_TOKEN


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def started(step: int = 0, steps: int = 300, floor: float | None = FLOOR) -> StartedEvent:
    return StartedEvent(
        step=step,
        folder="runs/tale",
        steps=steps,
        parameters=834_560,
        vocab_size=VOCABULARY,
        batch_tokens=2048,
        bytes_per_token=BYTES_PER_TOKEN,
        floor=floor,
        info={"model": "GPT of 4 blocks, width 128", "device": "cpu", "precision": "float32"},
    )


def stepped(step: int, loss: float = 2.0, steps: int = 300, seconds: float = 0.1) -> StepEvent:
    lr_scale = min(1.0, 2 * (1 - (step - 1) / steps))
    lrs = {"matrix_lr": 0.02 * lr_scale, "lr": 0.003 * lr_scale}
    grad_norm, speed = 0.4 + 1.5 * math.exp(-step / 20), 2048 / seconds
    return StepEvent(step, loss, grad_norm, lr_scale, step / 120, seconds, speed, **lrs)


def validated(step: int, loss: float, best: bool = True) -> ValidationEvent:
    return ValidationEvent(step, loss=loss, bits_per_byte=loss / math.log(2) / BYTES_PER_TOKEN, best=best, seconds=0.4)


def true_loss(step: int) -> float:
    """From ln(vocabulary) down to a little above the floor."""
    end = FLOOR_NATS + 0.35
    return end + (math.log(VOCABULARY) - end) * math.pow(1 + step / 8, -0.9)


def signal(step: int, depth: int = 4) -> SignalEvent:
    names = ["embedding", *(f"blocks.{i}" for i in range(depth)), "final_norm"]
    growth = 1 + step / 300
    layers = [{"name": name, "rms": growth ** (i / 2), "grad_rms": 2e-4 * growth**-i} for i, name in enumerate(names)]
    return SignalEvent(step, layers)


SAMPLE = "there was a little fox called Mia. Mia lived by the river and <script>alert('boo')</script> liked to swim.\n"


def simulated_run(steps: int = 300) -> Iterator[RunEvent]:
    rng = np.random.default_rng(0)
    yield started(steps=steps)
    yield NoticeEvent(0, "the text is read 2.5 times")
    yield signal(0)
    for step in range(1, steps + 1):
        seconds = 0.1 + 0.01 * float(rng.random())
        yield stepped(step, true_loss(step) + 0.08 * float(rng.standard_normal()), steps, seconds)
        if step % 50 == 0:
            yield CheckpointEvent(step, f"runs/tale/checkpoints/{step:08d}")
            yield validated(step, true_loss(step) + 0.03, best=step != 200)
        if step in (6, 30, 90, steps):
            yield signal(step)
        if step % 100 == 0:
            yield SampleEvent(step, "Once upon a time ", f"(after {step} steps) {SAMPLE}")
    yield FinishedEvent(steps, "done", steps * 0.11)
