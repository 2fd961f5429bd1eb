"""A run has the same bits with any number of threads, or keeps its number of threads."""

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.runs.events import NoticeEvent, ThreadsEvent
from normscope.runtime import adaptive_threads as adaptive
from normscope.runtime.adaptive_threads import TorchThreads
from normscope.runtime.openmp import set_env_defaults
from normscope.training import loop, session
from normscope.training.loop import train_run
from normscope.training.trainer import StepResult, Trainer
from tests.runtime.test_adaptive_threads import BusyMeter
from tests.training.small_run import last_sums, new_run
from tests.training.watching import Recorder

# In a process of its own, since MKL reads its mode when it is loaded.
SCRIPT = """
import json, sys
from normscope.runtime.openmp import set_env_defaults
set_env_defaults()
import numpy as np
import torch
from normscope import GPT
from normscope.data.batches import Batches
from normscope.models.presets import preset
from normscope.training.config import TrainConfig
from normscope.training.recipes import recipe
from normscope.training.trainer import Trainer

def digest(preset_name, recipe_name, depth, vocabulary, changes, steps, threads):
    torch.set_num_threads(threads[-1])
    chosen = recipe(recipe_name, depth)
    config = TrainConfig(**{**chosen.train, **changes})
    torch.manual_seed(0)
    model = GPT(preset(preset_name, **{**chosen.model, "vocab_size": vocabulary}))
    tokens = np.random.default_rng(0).integers(vocabulary, size=40 * (model.config.context + 1))
    trainer = Trainer(model, config, Batches(tokens, model.config.context, config.batch))
    for i in range(steps):
        torch.set_num_threads(threads[i % len(threads)])
        trainer.step()
    return trainer.step_digest()

for *case, steps in json.loads(sys.argv[1]):
    numbers = [[1], [2], [4], [4, 1, 2]] if steps > 1 else [[1], [2], [4]]
    print(json.dumps([digest(*case, steps, threads) for threads in numbers]), flush=True)
"""
PRESETS = ("gpt2", "nanochat", "llama")
QUICK: list[Any] = [(name, "sprint", 1, 65, {}, 1) for name in PRESETS]
ALL: list[Any] = [
    *((name, "sprint", depth, size, {}, 3) for name in PRESETS for depth in (2, 3) for size in (65, 97)),
    *((name, "dial", depth, 1024, {}, 3) for name in PRESETS for depth in (2, 3, 4, 6)),
    ("gpt2", "dial", 4, 1000, {"optimizer": "adamw"}, 3),
    ("nanochat", "dial", 4, 1000, {"micro_batch": 3}, 3),
]


def digests(cases: object) -> list[list[str]]:
    environment = dict(os.environ)
    set_env_defaults(environment)
    environment["OMP_WAIT_POLICY"] = "passive"  # four threads on two cores would wait for each other in loops
    command = [sys.executable, "-c", SCRIPT, json.dumps(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=1200)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_step_of_every_preset_has_the_same_bits_with_one_two_and_four_threads() -> None:
    found = digests(QUICK)
    assert len({one for one, *_ in found}) == len(QUICK)
    assert all(len(set(each)) == 1 for each in found), found


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ALL, ids=lambda case: "-".join(map(str, case[:4])))
def test_a_step_of_every_recipe_has_the_same_bits(case: object) -> None:
    ((one, *others),) = digests([case])
    assert others == [one] * 3


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NORMSCOPE_THREADS", "adaptive")
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def threads_of_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads torch has in each step from now on."""
    seen, step = list[int](), Trainer.step

    def counted(trainer: Trainer) -> StepResult:
        seen.append(torch.get_num_threads())
        return step(trainer)

    monkeypatch.setattr(Trainer, "step", counted)
    return seen


class EveryOther(TorchThreads):
    """Changes the number of threads with each step."""

    next = 1

    @property
    def threads(self) -> int:
        return self.next

    def step(self, seconds: float) -> None:
        self.next = 3 - self.next
        super().step(seconds)


@pytest.mark.usefixtures("two_threads")
def test_steps_use_the_chosen_threads_and_torch_gets_its_own_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = threads_of_steps(monkeypatch)
    monkeypatch.setattr(loop, "TorchThreads", EveryOther)
    train_run(new_run(tmp_path, steps=4))
    assert seen == [1, 2, 1, 2]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_busy_machine_is_reported_once_and_displayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "_meter", BusyMeter(1.9))
    monkeypatch.setattr(Trainer, "is_bitwise_equal", lambda trainer, threads, reference: True)
    run, recorder = new_run(tmp_path, steps=4), Recorder()
    train_run(run, [recorder])
    told = [notice.text for notice in recorder.of(NoticeEvent) if "busy" in notice.text]
    assert told == ["the machine is busy (other processes use 1.9 of 2 cores): using 1 of 2 threads for now"]
    assert recorder.of(ThreadsEvent)[0] == ThreadsEvent(1, threads=1, max_threads=2, busy=True)
    assert '"kind": "threads"' not in run.metrics.read_text()
    facts = json.loads((run.checkpoints.path(4) / "state.json").read_text())
    assert facts["environment"]["threads"] == "2"  # whose bits they are


@pytest.mark.usefixtures("two_threads")
def test_compiled_code_keeps_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "_meter", BusyMeter(1.9))
    monkeypatch.setattr(torch, "compile", lambda function: function)
    seen = threads_of_steps(monkeypatch)
    train_run(new_run(tmp_path, steps=2, compile=True))
    assert seen == [2, 2]


def test_a_digest_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "asked").mkdir()
    (tmp_path / "left").mkdir()
    settings = {"steps": 4, "micro_batch": 2}
    asked, left = (new_run(tmp_path / name, {"dropout": 0.2}, **settings) for name in ("asked", "left"))
    train_run(left)
    step = Trainer.step
    found: list[str] = []

    def with_digests(trainer: Trainer) -> object:
        found.extend([trainer.step_digest(), trainer.step_digest()])
        return step(trainer)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "step", with_digests)
        train_run(asked)
    assert last_sums(asked) == last_sums(left)
    assert found[::2] == found[1::2]
    assert len(set(found)) == 4


def test_a_step_that_depends_on_the_threads_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    step = Trainer.step

    def ask(trainer: Trainer) -> object:
        asked.append(trainer.is_bitwise_equal(2, 1))
        assert torch.get_num_threads() == 1
        return step(trainer)

    monkeypatch.setattr(Trainer, "step", ask)
    train_run(new_run(tmp_path, steps=1))

    def off_by_a_bit(weight: torch.Tensor) -> torch.Tensor:
        return weight * (1 + torch.finfo(torch.float32).eps * (torch.get_num_threads() - 1))

    class Rounding(Trainer):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            dict(self.model.named_parameters())["blocks.0.mlp.up.weight"].register_hook(off_by_a_bit)

    (tmp_path / "other").mkdir()
    monkeypatch.setattr(session, "Trainer", Rounding)
    train_run(new_run(tmp_path / "other", steps=1))
    assert asked == [True, False]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_changed_thread_count_is_reported_if_it_changes_the_bits(
    keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, recorder = new_run(tmp_path, steps=4), Recorder()
    train_run(run, until=2)
    monkeypatch.setattr(Trainer, "is_bitwise_equal", lambda trainer, threads, reference: keeps)
    torch.set_num_threads(2)
    try:
        train_run(run, [recorder])
    finally:
        torch.set_num_threads(1)
    told = [notice.text for notice in recorder.of(NoticeEvent)]
    assert told == (
        []
        if keeps
        else ["environment changed: threads was 1 and is 2. Results may differ in the last bits from here on"]
    )


def test_nothing_keeps_the_run_open_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens are mapped into memory, and a folder that is mapped cannot be removed or unmounted everywhere."""
    loops: list[weakref.ref[object]] = []
    begin = session.TrainingSession.begin

    def noted(self: session.TrainingSession, *arguments: Any) -> None:
        loops.append(weakref.ref(self))
        begin(self, *arguments)

    monkeypatch.setattr(session.TrainingSession, "begin", noted)
    gc.collect()
    gc.disable()
    try:
        train_run(new_run(tmp_path, steps=1))
        assert [kept() for kept in loops] == [None]
    finally:
        gc.enable()
