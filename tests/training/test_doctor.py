"""What the doctor finds: this machine as it is, what a run would use, and what it costs, measured."""

from pathlib import Path

import pytest
import torch

from normscope._version import __version__
from normscope.errors import ConfigError
from normscope.models.gpt import GPT
from normscope.models.presets import nanochat
from normscope.training.config import TrainConfig
from normscope.training.doctor import describe_choices, describe_machine, doctor, measure_cost
from normscope.training.loop import train_run
from tests.runs.tiny_checkpoint import write_huggingface
from tests.training.small_run import new_run

MODEL = nanochat(vocab_size=31, context=16, depth=2, width=16, heads=2)


def test_the_machine_is_described(tmp_path: Path) -> None:
    lines = {line.name: line for line in describe_machine(tmp_path)}
    assert list(lines) == ["normscope", "CPU", "load", "memory", "disk"]
    assert lines["normscope"].value == __version__
    assert torch.__version__ in lines["normscope"].note
    assert lines["disk"].value.endswith("GB free")
    assert str(tmp_path) in lines["disk"].note


@pytest.mark.parametrize("compile", [True, False])
def test_a_run_would_use_this(compile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no compiler there
    monkeypatch.delenv("CXX", raising=False)
    config = TrainConfig(steps=1, batch=1, device="cpu", compile=compile)
    lines = {line.name: line for line in describe_choices(config, probe=False)}
    assert list(lines) == ["device", "threads", "kernels", "precision", "compile", "allocator"]
    assert (lines["device"].value, lines["precision"].value) == ("cpu", "float32")
    assert lines["threads"].value == "1"
    assert lines["compile"].value == "unavailable"
    assert all(line.note for line in lines.values())


def test_the_cost_is_that_of_the_config(tmp_path: Path) -> None:
    config = TrainConfig(steps=50, batch=4, seed=3)
    cost = measure_cost(MODEL, config, seconds=0.05)
    assert cost.parameters == GPT(MODEL).parameter_count()
    assert cost.step_seconds > 0
    assert cost.tokens_per_second == pytest.approx(4 * 16 / cost.step_seconds)
    assert cost.total_seconds == pytest.approx(50 * cost.step_seconds)


def test_the_measurement_leaves_the_rng_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    measure_cost(MODEL, TrainConfig(steps=50, batch=4, seed=3), seconds=0.01)
    assert torch.equal(torch.rand(3), expected)


def test_a_checkpoint_is_as_large_as_it_is_said_to_be(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=1)
    train_run(run)
    files = run.checkpoints.path(1).glob("*.safetensors")
    written = sum(path.stat().st_size for path in files)
    told = measure_cost(run.config.model, run.config.train, seconds=0.01).checkpoint
    assert told <= written <= told * 1.2  # the names take some room


def test_finetuning_a_source_is_measured(tmp_path: Path) -> None:
    source = write_huggingface(tmp_path / "source", torch.float32)
    whole = doctor(init_from=source, seconds=0.01, batch=2, context=16)
    part = doctor(init_from=source, seconds=0.01, batch=2, context=16, lora=2)
    assert whole.preset == "Hugging Face llama"
    assert (whole.model.depth, whole.model.context, whole.train.optimizer) == (2, 16, "adamw")
    assert part.cost.checkpoint < whole.cost.checkpoint / 4  # only what is trained
    with pytest.raises(ConfigError, match="depth=4 contradicts --from"):
        doctor(init_from=source, depth=4)
