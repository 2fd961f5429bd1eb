"""Pairing: variants of a seed see the same data in the same order."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from normscope.lab.claim import Budget
from normscope.lab.results.outcome import Outcome
from normscope.lab.running.run_claims import claim_study
from normscope.lab.running.scheduler import TrialScheduler
from normscope.lab.running.trial import LabTrial, Store, run_trial
from normscope.lab.trials import images, text
from normscope.models.convnet import ConvNet
from normscope.models.gpt import GPT
from tests.lab.running.test_run_claims import tiny_claim
from tests.lab.workers import Here, Silent

Given = list[bytes]


def recorded(monkeypatch: pytest.MonkeyPatch, model: type[Any], method: str) -> Given:
    """Record every batch that a method of the model gets."""
    given: Given = []
    original: Callable[..., Tensor] = getattr(model, method)

    def note(self: Any, *batch: Tensor) -> Tensor:
        given.append(b"".join(part.numpy().tobytes() for part in batch))
        return original(self, *batch)

    monkeypatch.setattr(model, method, note)
    return given


def test_variants_see_the_same_text_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_flops_per_step", lambda settings: 1)  # counted once for each shape, on a batch too
    given = recorded(monkeypatch, GPT, "loss")
    by_trial: dict[tuple[str, int], Given] = {}

    class Recording(Here):
        def start(self, trial: LabTrial) -> Any:
            given.clear()
            future = super().start(trial)
            by_trial[trial.settings["model"]["norm"], trial.seed] = [*given]
            return future

    schedule: TrialScheduler[Outcome] = TrialScheduler(Store(tmp_path), Recording(), Silent())
    schedule.run({"claim": claim_study(tiny_claim(tuning=None), Budget("quick", seeds=2))})
    assert not schedule.errors
    first, second = sorted({seed for _, seed in by_trial})
    for seed in (first, second):
        assert len(by_trial["rms", seed]) > 6  # those that are lrained on, and those held out
        assert by_trial["rms", seed] == by_trial["layer", seed]
    assert by_trial["rms", first][:6] != by_trial["rms", second][:6]
    assert by_trial["rms", first][6:] == by_trial["rms", second][6:]


def test_variants_see_the_same_images_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(images, "_flops_per_step", lambda *settings: 1)
    given = recorded(monkeypatch, ConvNet, "forward")

    def of(norm: str, seed: int) -> Given:
        given.clear()
        model = {"kind": "convnet", "norm": norm}
        settings = {"model": model, "optimizer": "sgd", "lr": 0.1, "batch": 4, "steps": 3}
        run_trial(LabTrial("normscope.lab.trials.images:train_images", settings, seed))
        return [*given]

    assert len(of("batch", 0)) > 3
    assert of("batch", 0) == of("group", 0)
    assert of("batch", 0)[:3] != of("batch", 1)[:3]
