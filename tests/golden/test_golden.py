"""Losses and drawings of every preset stay what they were.

`python -m tests.golden.test_golden` writes values.json again, after a change that is meant to change them. Losses are
compared with a tolerance, since sums are reordered on other processors.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from normscope import GPT, draw_model, preset
from normscope.data.batches import Batches
from normscope.training.config import TrainConfig
from normscope.training.recipes import recipe
from normscope.training.trainer import Trainer

VALUES = Path(__file__).with_name("values.json")
PRESETS = ("gpt2", "nanochat", "llama")
STEPS = 20
TOLERANCE = 2e-3
"""On a loss after up to 20 steps: one step of lr turns a difference of an ulp into about 1e-5."""


def trained(name: str) -> tuple[GPT, list[float]]:
    torch.manual_seed(0)
    tokens = np.tile(np.random.default_rng(0).integers(65, size=50), 40)  # 50 tokens, repeated
    model = GPT(preset(name, vocab_size=65, context=32, depth=2, width=64, heads=4))
    trainer = Trainer(model, TrainConfig(**recipe("sprint").train), Batches(tokens, context=32, batch=8))
    return model, [trainer.step().loss for _ in range(STEPS)]


def measured(name: str) -> dict[str, object]:
    model, losses = trained(name)
    drawing = draw_model(model.eval(), torch.zeros(2, 32, dtype=torch.long)).text
    return {"losses": losses, "drawing": drawing.splitlines()}


@pytest.mark.parametrize("name", PRESETS)
def test_losses_and_drawings_are_what_they_were(name: str) -> None:
    known, now = json.loads(VALUES.read_text())[name], measured(name)
    assert now["losses"] == pytest.approx(known["losses"], rel=TOLERANCE)
    assert now["drawing"] == known["drawing"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    VALUES.write_text(json.dumps({name: measured(name) for name in PRESETS}, indent=1) + "\n")
