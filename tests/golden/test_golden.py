"""Losses and drawings of every preset match the recorded values.

`python -m tests.golden.test_golden` rewrites values.json after an intended change. Losses have a tolerance because
summation order differs between CPUs.
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
PRESETS = ("gpt2", "nanochat", "nanochat-2026-07", "llama")
STEPS = 20
TOLERANCE = 2e-3
"""For losses of up to 20 steps: one optimizer step turns a difference of an ulp into about 1e-5."""


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
def test_losses_and_drawings_match_recorded_values(name: str) -> None:
    expected, actual = json.loads(VALUES.read_text())[name], measured(name)
    assert actual["losses"] == pytest.approx(expected["losses"], rel=TOLERANCE)
    assert actual["drawing"] == expected["drawing"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    VALUES.write_text(json.dumps({name: measured(name) for name in PRESETS}, indent=1) + "\n")
