"""The dtype of matrix products: the safe default, and bfloat16 only if a probe shows that it works."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

from normscope.errors import ConfigError
from normscope.runtime import precision
from normscope.runtime.precision import BFloat16Probe, choose_precision, probe_bfloat16
from normscope.training.config import TrainConfig
from tests.training.forked import start_forked

CPU = torch.device("cpu")


@pytest.mark.parametrize("wanted", ["auto", "float32"])
def test_a_cpu_uses_float32_without_a_probe(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "probe_bfloat16", None)
    choice = choose_precision(wanted, CPU)  # type: ignore[arg-type]
    assert choice.dtype == torch.float32
    assert choice.reason
    with choice.autocast(CPU)():
        assert not torch.is_autocast_enabled("cpu")


def run_probe(path: str) -> None:
    with open(path, "w") as file, redirect_stdout(file):
        exec(precision._PROBE, {})


@pytest.mark.exhaustive  # mostly waiting
def test_the_probe_times_both_dtypes(tmp_path: Path) -> None:
    """In a process of its own, which a CPU without bfloat16 may end with a signal."""
    process = start_forked(run_probe, str(tmp_path / "times.json"))
    process.join(120)
    assert process.exitcode is not None
    assert process.exitcode <= 0
    if process.exitcode == 0:
        times = json.loads((tmp_path / "times.json").read_text())
        assert set(times) == {"float32", "bfloat16"}
        assert min(times.values()) > 0


@pytest.mark.exhaustive  # the others have the probe and the process that runs it, one by one
def test_bfloat16_is_probed_in_a_subprocess() -> None:
    """Whatever this machine can do: this process lives, and the choice follows from what was found."""
    probe = probe_bfloat16()
    assert probe is probe_bfloat16()  # once is enough
    if probe.ratio is not None and probe.ratio >= 1:
        choice = choose_precision("bfloat16", CPU)
        assert choice.dtype == torch.bfloat16
        with choice.autocast(CPU)():
            assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    else:
        with pytest.raises(ConfigError, match=r"bfloat16 is not usable on this CPU: .*\nfix: --precision float32"):
            choose_precision("bfloat16", CPU)
    assert ("times as fast" in probe.message) == (probe.ratio is not None)


@pytest.fixture
def probing(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """For another probe than the real one, which nobody is to remember."""
    probe_bfloat16.cache_clear()
    yield monkeypatch
    probe_bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", r"crashes the process \(signal 4\)"),
        ("raise RuntimeError('no such thing')", "a matrix product fails: RuntimeError: no such thing"),
        ("raise SystemExit(3)", "a matrix product fails: no error message"),
    ],
)
def test_a_crashing_probe_rules_out_bfloat16(probing: pytest.MonkeyPatch, code: str, message: str) -> None:
    probing.setattr(precision, "_PROBE", code)
    with pytest.raises(ConfigError, match=message):
        choose_precision("bfloat16", CPU)


@pytest.mark.parametrize(("seconds", "good"), [((0.2, 0.1), True), ((0.1, 0.2), False)])
def test_bfloat16_has_to_be_faster(probing: pytest.MonkeyPatch, seconds: tuple[float, float], good: bool) -> None:
    answer = f'{{"float32": {seconds[0]}, "bfloat16": {seconds[1]}}}'
    probing.setattr(precision, "_PROBE", f"print({answer!r})")
    if good:
        assert choose_precision("bfloat16", CPU).dtype == torch.bfloat16
    else:
        with pytest.raises(ConfigError, match=r"is 0\.50 times as fast as float32"):
            choose_precision("bfloat16", CPU)


def test_a_hanging_probe_rules_out_bfloat16(probing: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("probe", 120)

    probing.setattr(subprocess, "run", late)
    assert probe_bfloat16() == BFloat16Probe(None, "a matrix product timed out after two minutes")


def test_an_unknown_precision_is_an_error() -> None:
    with pytest.raises(ConfigError, match="precision='float16': choose one of auto, float32, bfloat16"):
        TrainConfig(steps=1, batch=1, precision="float16")  # type: ignore[arg-type]
