"""One step: exact accumulation, clipping, schedule, frozen weights, and a state that resumes to the same bits."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from normscope.data.batches import Batches
from normscope.errors import CheckpointError, ConfigError, NonFiniteError, WeightsError
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import gpt2, llama, nanochat, preset
from normscope.training import trainer as module
from normscope.training.config import TrainConfig
from normscope.training.optimizers.groups import global_norm
from normscope.training.trainer import Trainer
from tests.pairs import chiefly, every_value
from tests.support import random_tokens, scramble

SIZES: dict[str, Any] = {"vocab_size": 11, "context": 8, "depth": 2, "width": 16, "heads": 2}


def new_trainer(model: GPTConfig | None = None, dtype: torch.dtype = torch.float32, **settings: Any) -> Trainer:
    torch.manual_seed(0)
    gpt = GPT(model or nanochat(**SIZES)).to(dtype)
    scramble(gpt)
    config = TrainConfig(**{"steps": 20, "batch": 6, **settings})
    tokens = random_tokens(11, 500, seed=3).numpy()
    return Trainer(gpt, config, Batches(tokens, 8, config.batch, seed=1))


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.model.parameters()]


@every_value(name=["gpt2", "nanochat", "llama"], micro_batch={str(size): size for size in (1, 2, 4, 5)})
def test_micro_batches_give_the_same_step(name: str, micro_batch: int) -> None:
    whole = new_trainer(preset(name, **SIZES), torch.float64)
    parts = new_trainer(preset(name, **SIZES), torch.float64, micro_batch=micro_batch)
    for _ in range(3):
        one, other = whole.step(), parts.step()
        assert one.loss == pytest.approx(other.loss, rel=1e-12)
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-10)
    # Muon's orthogonal steps magnify roundings, and AdamW's of gradients near zero too.
    torch.testing.assert_close(weights(whole), weights(parts), rtol=1e-5, atol=1e-7)


def test_micro_batches_give_the_same_gradient() -> None:
    whole, parts = new_trainer(dtype=torch.float64), new_trainer(dtype=torch.float64, micro_batch=4)
    inputs, targets = whole.load_batch(0)
    for trainer in (whole, parts):
        trainer._accumulate(inputs, targets)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_model_memorizes_a_line(optimizer: str) -> None:
    trainer = new_trainer(steps=60, optimizer=optimizer, matrix_lr=0.02)
    trainer.batches = Batches(np.tile(np.arange(11), 30), 8, 6, seed=0)
    losses = [trainer.step().loss for _ in range(60)]
    assert losses[-1] < 0.3 < 2 < losses[0]


def test_gradients_are_clipped_to_grad_clip() -> None:
    free, bound = new_trainer(grad_clip=None, optimizer="adamw"), new_trainer(grad_clip=1e-3, optimizer="adamw")
    inputs, targets = free.load_batch(0)
    bound._accumulate(inputs, targets)
    before = global_norm(bound.optimizer.gradients)
    bound.optimizer.zero_grad()
    seen: list[float] = []
    step = bound.optimizer.step

    def watched(lr_scale: float) -> None:
        seen.append(global_norm(bound.optimizer.gradients))
        step(lr_scale)

    bound.optimizer.step = watched  # type: ignore[method-assign]
    assert bound.step().grad_norm == pytest.approx(before)
    assert seen == [pytest.approx(1e-3, rel=1e-4)]
    assert free.step().grad_norm == pytest.approx(before)


def test_the_learning_rate_follows_the_schedule() -> None:
    trainer = new_trainer(steps=4, decay=1.0)
    assert [trainer.step().lr_scale for _ in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_a_frozen_weight_is_unchanged_and_has_no_optimizer_state() -> None:
    trainer = new_trainer()
    trainer.model.blocks[0].requires_grad_(False)
    trainer = Trainer(trainer.model, trainer.config, trainer.batches)
    before = [weight.clone() for weight in trainer.model.blocks[0].parameters()]
    trainer.step()
    assert all(torch.equal(*pair) for pair in zip(before, trainer.model.blocks[0].parameters(), strict=True))
    assert not any(name.startswith("blocks.0") for name in trainer.optimizer.tensors())


@pytest.mark.parametrize("model", [nanochat(**SIZES), gpt2(**SIZES), llama(**SIZES, dropout=0.2)])
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_restored_state_continues_bit_for_bit(model: GPTConfig, optimizer: str) -> None:
    straight = new_trainer(model, optimizer=optimizer)
    for _ in range(3):
        straight.step()
    tensors, facts = straight.state()
    tensors = {name: {key: value.clone() for key, value in group.items()} for name, group in tensors.items()}
    losses = [straight.step().loss for _ in range(3)]
    resumed = new_trainer(model, optimizer=optimizer)
    scramble(resumed.model, seed=5)
    resumed.restore(tensors, facts)
    assert [resumed.step().loss for _ in range(3)] == losses
    assert all(torch.equal(*pair) for pair in zip(weights(straight), weights(resumed), strict=True))


def test_a_state_saved_on_the_cpu_is_restored_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    saved, trainer = new_trainer(), new_trainer()
    saved.step()
    tensors, state = saved.state()
    put: list[dict[str, torch.Tensor]] = []
    monkeypatch.setattr(Trainer, "device", torch.device("cuda"))  # none is here
    monkeypatch.setattr(module, "rng_state", lambda _: {"torch": torch.get_rng_state(), "cuda": torch.zeros(16)})
    monkeypatch.setattr(module, "set_rng_state", lambda state, _: put.append(dict(state)))
    assert trainer.expected_tensors(1, saved_device="cpu")["rng"].keys() == tensors["rng"].keys() == {"torch"}
    assert trainer.expected_tensors(1)["rng"].keys() == {"torch", "cuda"}
    trainer.restore(tensors, state)
    assert [[*names] for names in put] == [["torch"]]
    first = torch.rand(3)
    trainer.restore(tensors, {**state, "step": 2})
    assert not torch.equal(torch.rand(3), first)  # the accelerator draws numbers of the step


def test_a_skipped_batch_is_not_trained_on() -> None:
    trainer, other = new_trainer(), new_trainer()
    trainer.skipped_batches = [0, 1]
    other.next_batch = 2
    assert trainer.step().loss == other.step().loss
    assert trainer.next_batch == other.next_batch == 3


def test_nonfinite_raises_before_a_weight_changes() -> None:
    trainer = new_trainer()
    with torch.no_grad():
        trainer.model.get_parameter("blocks.1.mlp.down.weight")[0, 0] = torch.inf
    before = weights(trainer)
    with pytest.raises(NonFiniteError, match="at step 1, batch 0"):
        trainer.step()
    assert all(torch.equal(*pair) for pair in zip(before, weights(trainer), strict=True))
    assert all(weight.grad is None for weight in trainer.model.parameters())


def keeps_statistics(norm: str) -> Trainer:
    """Of a model in which token 0 stands for a huge vector, whose square is infinite."""
    trainer = new_trainer(nanochat(**SIZES, norm=norm, allow_future_leak=True, embedding_norm=False))
    with torch.no_grad():
        trainer.model.embedding.weight[0] = 1e25
    return trainer


class WithTheHugeToken:
    """Batches of small tokens, but for one."""

    def batch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = random_tokens(10, 6, 9, seed=number).numpy() + 1
        if number == 2:
            tokens[1, 4] = 0
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()


@pytest.mark.parametrize(("norm", "words"), [("power", "the loss is nan"), ("batch", "a running statistic is not")])
@pytest.mark.parametrize("micro_batch", [None, 1])
def test_nonfinite_raises_and_restores_running_statistics(norm: str, words: str, micro_batch: int | None) -> None:
    trainer = keeps_statistics(norm)
    trainer.batches, trainer.config = WithTheHugeToken(), replace(trainer.config, micro_batch=micro_batch)
    for _ in range(2):
        trainer.step()
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    with pytest.raises(NonFiniteError, match=f"{words}.* at step 3, batch 2"):
        trainer.step()
    after = trainer.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_nonfinite_running_statistic_is_never_saved() -> None:
    trainer = keeps_statistics("batch")
    trainer.model.get_buffer("final_norm.running_var")[0] = torch.inf
    with pytest.raises(NonFiniteError, match="not finite after step 0"):
        trainer.state()


def scale_loss(trainer: Trainer, factor: float) -> None:
    loss = trainer.parallel.loss
    trainer.parallel.loss = lambda share, *batch: factor * loss(share, *batch)  # type: ignore[method-assign]


def test_gradients_whose_squares_overflow_are_clipped() -> None:
    trainer = new_trainer(optimizer="adamw")
    assert global_norm([torch.tensor([3e25, 0.0, -4e25])]) == pytest.approx(5e25)
    scale_loss(trainer, 1e25)
    assert 1e20 < trainer.step().grad_norm < math.inf
    assert all(bool(value.isfinite().all()) for value in trainer.optimizer.tensors().values())


def test_unclipped_gradients_must_have_finite_squares() -> None:
    """AdamW would remember an infinite one for ever."""
    trainer = new_trainer(grad_clip=None)
    scale_loss(trainer, 1e25)
    with pytest.raises(NonFiniteError, match=r"the gradient norm is \d\.\d+e\+2\d at step 1, batch 0"):
        trainer.step()


def test_a_state_of_another_model_is_an_error() -> None:
    trainer = new_trainer()
    tensors, facts = new_trainer(nanochat(**{**SIZES, "width": 32})).state()
    with pytest.raises(CheckpointError, match="does not match the model"):
        trainer.restore(tensors, facts)
    with pytest.raises(WeightsError, match="'strange' that the model does not have"):
        trainer.optimizer.load({"strange:momentum": torch.ones(1)})


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own compiler still uses it
@pytest.mark.parametrize("backend", chiefly(["aot_eager"], ["inductor"]))
def test_a_compiled_model_trains_the_same(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default without inductor, which takes a minute to make C++ of the graph."""
    torch.compiler.reset()
    compile_with, asked = torch.compile, []

    def compiling(function: Any) -> Any:
        asked.append(function)
        return compile_with(function, backend=backend)

    monkeypatch.setattr(torch, "compile", compiling)
    model = nanochat(**{**SIZES, "depth": 1})
    plain, compiled = new_trainer(model), new_trainer(model, compile=True)
    assert len(asked) == 1
    for _ in range(2):
        assert plain.step().loss == pytest.approx(compiled.step().loss, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "steps=0"),
        ({"batch": 2.5}, "batch=2.5"),
        ({"micro_batch": 0}, "micro_batch=0"),
        ({"optimizer": "sgd"}, "optimizer='sgd': choose one of muon, adamw"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"beta2": 1.0}, "beta2=1.0"),
        ({"grad_clip": -1.0}, "clip=-1.0"),
        ({"seed": -1}, "seed=-1"),
        ({"on_nan": "ignore"}, "on_nan='ignore': choose one of stop, rollback"),
        ({"decay": 2.0}, "decay=2.0"),
        ({"weight_decay": float("nan")}, "weight_decay=nan"),
    ],
)
def test_invalid_settings_are_errors(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainConfig(**{"steps": 5, "batch": 2, **settings})


def test_a_config_round_trips_through_json() -> None:
    config = TrainConfig(steps=5, batch=2, grad_clip=None, optimizer="adamw")
    assert TrainConfig.from_json(config.to_json()) == config
    with pytest.raises(ConfigError, match=r"the training's config has the unknown setting 'colour'\nfix: "):
        TrainConfig.from_json({**config.to_json(), "colour": "red"})
    lacking = {name: value for name, value in config.to_json().items() if name != "steps"}
    with pytest.raises(ConfigError, match=r"the training's config lacks 'steps'\nfix: use the normscope that wrote it"):
        TrainConfig.from_json(lacking)


def test_numpy_numbers_become_python_numbers() -> None:
    config = TrainConfig(steps=np.int64(5), batch=np.uint8(2), lr=np.float32(0.5), compile=True)  # type: ignore[arg-type]
    assert json.loads(json.dumps(config.to_json())) == config.to_json()
    assert (type(config.steps), type(config.lr), config.compile) == (int, float, True)
