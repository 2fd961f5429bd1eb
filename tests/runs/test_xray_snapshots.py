"""X-ray snapshots: the signal per layer is correct, and model and training are unaffected."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record_json import load_record
from normscope.errors import ConfigError
from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS, gpt2, preset
from normscope.runs.metrics_file import read_metrics
from normscope.runs.run import Run
from normscope.runs.xray_snapshots import layer_signal, take_xray
from normscope.training.config import TrainConfig
from normscope.training.loop import train_run
from tests.pairs import every_value
from tests.support import random_tokens, scramble
from tests.training.small_run import last_sums, new_run

SIZES: dict[str, Any] = {"vocab_size": 11, "context": 8, "depth": 2, "width": 16, "heads": 2}
TOKENS = random_tokens(11, 3, 9)
INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]


def test_the_signal_is_the_rms_of_each_layer() -> None:
    model = GPT(gpt2(**SIZES)).double().eval()
    scramble(model)
    found = {layer["name"]: layer for layer in layer_signal(take_xray(model, INPUTS, TARGETS))}
    # The residual stream by hand: embedding, positions, block by block.
    table = model.embedding(INPUTS)
    assert model.position is not None
    stream = [table, model.blocks[0](table + model.position(torch.arange(8)))]
    stream.append(model.blocks[1](stream[-1]))
    stream.append(model.final_norm(stream[-1]))
    logits = stream[-1] @ model.embedding.weight.T
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TARGETS.flatten())
    gradients = torch.autograd.grad(loss, stream)
    assert list(found) == ["embedding", "blocks.0", "blocks.1", "final_norm"]
    for layer, value, gradient in zip(found.values(), stream, gradients, strict=True):
        assert layer["rms"] == pytest.approx(_rms(value), rel=1e-5)
        assert layer["grad_rms"] == pytest.approx(_rms(gradient), rel=1e-5)


def _rms(tensor: Tensor) -> float:
    return tensor.square().mean().sqrt().item()


@every_value(name=list(PRESETS), wiring=["pre", "post", "sandwich", "parallel", "single", "none"])
def test_every_preset_has_a_signal(name: str, wiring: str) -> None:
    model = GPT(preset(name, **SIZES, wiring=wiring))
    scramble(model, scale=0.1)
    layers = layer_signal(take_xray(model, INPUTS, TARGETS))
    assert [layer["name"] for layer in layers] == ["embedding", "blocks.0", "blocks.1", "final_norm"]
    assert all(layer["rms"] > 0 and layer["grad_rms"] > 0 for layer in layers)
    quick = layer_signal(take_xray(model, INPUTS, TARGETS, only_layers=True))  # fused, as in training
    assert [layer["name"] for layer in quick] == [layer["name"] for layer in layers]
    for found, wanted in zip(quick, layers, strict=True):
        assert found["rms"] == pytest.approx(wanted["rms"], rel=1e-5)
        assert found["grad_rms"] == pytest.approx(wanted["grad_rms"], rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_an_xray_leaves_the_model_unchanged(training: bool) -> None:
    model = GPT(gpt2(**SIZES, dropout=0.5)).train(training)
    weights = [weight.clone() for weight in model.parameters()]
    before = torch.get_rng_state()
    assert layer_signal(take_xray(model, INPUTS, TARGETS)) == layer_signal(
        take_xray(model, INPUTS, TARGETS)
    )  # no dropout
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(*pair) for pair in zip(weights, model.parameters(), strict=True))
    assert not any(module._forward_hooks for module in model.modules())


def test_only_layers_are_recorded_if_nothing_else_is_asked_for() -> None:
    record = take_xray(GPT(gpt2(**SIZES)), INPUTS, TARGETS, only_layers=True)
    assert [module.name for module in record.ran] == ["embedding", "blocks.0", "blocks.1", "final_norm"]
    assert not any(module.parameters for module in record.modules)
    assert record.notices == ("only some modules were recorded, without functions and parameters",)
    with (
        pytest.raises(ConfigError, match=r"no module 'blocks.7'\nfix: "),
        Xray(nn.Sequential(), submodules=["blocks.7"]),
    ):
        pass


def test_modules_keep_their_own_train_mode() -> None:
    model = GPT(gpt2(**SIZES))
    model.train().blocks[0].eval()
    before = [module.training for module in model.modules()]
    take_xray(model, INPUTS, TARGETS)
    assert [module.training for module in model.modules()] == before


def new_folder(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def trained(folder: Path, **settings: Any) -> Run:
    run = new_run(folder, **{"steps": 5, "eval_every": 0, **settings})
    assert train_run(run) == "done"
    return run


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with snapshots; to be read only."""
    return trained(tmp_path_factory.mktemp("watched"), xray_every=2)


def test_snapshots_do_not_change_the_bits_of_training(watched: Run, tmp_path: Path) -> None:
    plain = trained(new_folder(tmp_path, "plain"), save_every=0)
    assert last_sums(watched) == last_sums(plain)
    assert not plain.xray_snapshots.folder.exists()
    assert watched.xray_snapshots.steps() == [0, 2, 4, 5]
    signals = [event["step"] for event in read_metrics(watched.metrics) if event["kind"] == "signal"]
    assert signals == [0, 2, 4, 5]
    record = load_record(watched.xray_snapshots.path(4))
    assert record.label == "run step 4"
    assert record.backward_passes == 1
    told = next(event for event in read_metrics(watched.metrics) if event["kind"] == "signal" and event["step"] == 4)
    assert told["layers"] == layer_signal(record)


def test_a_snapshot_has_the_update_of_its_step(tmp_path: Path) -> None:
    run = trained(tmp_path, save_every=1, xray_every=4)
    assert load_record(run.xray_snapshots.path(0)).steps == ()
    record = load_record(run.xray_snapshots.path(5))
    assert [step.optimizer for step in record.steps] == ["Muon", "AdamW"]
    before, after = (run.load_model(step)[0] for step in (4, 5))
    for name in ("blocks.1.mlp.up", "embedding"):
        (weight,) = record[name].parameters
        old, new = (model.get_parameter(f"{name}.weight").detach().double() for model in (before, after))
        assert weight.update_ratio == pytest.approx(_rms(new - old) / _rms(old), rel=1e-6)
        assert weight.in_optimizer is True


def test_a_resumed_run_has_the_same_snapshots(watched: Run, tmp_path: Path) -> None:
    broken = new_run(tmp_path, steps=5, eval_every=0, xray_every=2)
    train_run(broken, until=3)
    train_run(broken)
    assert last_sums(broken) == last_sums(watched)
    assert broken.xray_snapshots.steps() == watched.xray_snapshots.steps()
    for step in watched.xray_snapshots.steps():
        assert load_record(broken.xray_snapshots.path(step)) == load_record(watched.xray_snapshots.path(step))


def test_a_snapshot_has_its_number_of_steps(tmp_path: Path) -> None:
    """Also the one of the step that a run was stopped at, which is taken again and has seen no step itself."""
    run = new_run(tmp_path, steps=3, eval_every=0, xray_every=1)
    train_run(run, until=2)
    train_run(run)
    assert [load_record(run.xray_snapshots.path(step)).steps_before for step in run.xray_snapshots.steps()] == list(
        range(4)
    )


def test_resuming_from_an_earlier_step_drops_later_snapshots(tmp_path: Path) -> None:
    run = trained(tmp_path, save_every=3, xray_every=2)
    assert train_run(run, from_step=3, until=4) == "paused"
    assert run.xray_snapshots.steps() == [0, 2, 4]


@pytest.mark.parametrize("pause", [2, 3])
def test_a_finding_is_reported_once_even_after_a_resume(tmp_path: Path, pause: int) -> None:
    wild: dict[str, Any] = {"steps": 3, "eval_every": 0, "xray_every": 1, "matrix_lr": 3.0, "lr": 1.0}
    uninterrupted = trained(new_folder(tmp_path, "uninterrupted"), **wild)
    broken = new_run(new_folder(tmp_path, "broken"), **wild)
    train_run(broken, until=pause)
    train_run(broken)
    told = [
        [event["text"] for event in read_metrics(run.metrics) if event["kind"] == "notice"]
        for run in (uninterrupted, broken)
    ]
    faults, others = ([text.splitlines()[0] for text in texts if text.startswith("x-ray: ")] for texts in told)
    assert faults
    assert len(set(faults)) == len(faults)
    assert others == faults
    assert "\nsee normscope xray " in next(text for text in told[0] if text.startswith("x-ray: "))
    for step in (1, 2, 3):  # the snapshot at the pause still has the updates of the step before it
        found, wanted = (load_record(run.xray_snapshots.path(step)) for run in (broken, uninterrupted))
        assert [module.parameters for module in found.modules] == [module.parameters for module in wanted.modules]
        assert found.steps == wanted.steps


def test_a_damaged_snapshot_does_not_stop_a_run(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=3, xray_every=1)
    train_run(run, until=2)
    run.xray_snapshots.path(1).write_text("{")
    assert train_run(run) == "done"


@pytest.mark.parametrize("wrong", [-1, 1.5, True])
def test_xray_every_must_be_a_whole_number(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="xray_every="):
        TrainConfig(steps=1, batch=1, xray_every=wrong)
