"""Run tests on emulated older CPUs, with two threads and without numba, each in a separate process.

The default suite runs a few tests; `make test-all` runs whole folders.
"""

import faulthandler
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.portability.machine_code import registers
from tests.portability.processors import PROCESSORS, REGISTERS, missing

ROOT = Path(__file__).parents[2]

KEY_TESTS = ["tests/portability/key_tests.py"]

NUMERIC = [
    "tests/ops",
    "tests/blocks",
    "tests/models",
    "tests/generate",
    "tests/interop",
    "tests/fusing",
    "tests/diagnostics",
]
"""Folders with numerical tests."""

WITHOUT_KERNELS = [
    "tests/blocks/test_block.py", "tests/blocks/test_linear.py", "tests/blocks/test_mlp.py",
    "tests/blocks/norm/test_definition.py", "tests/blocks/norm/test_identities.py", "tests/blocks/norm/test_mask.py",
    "tests/blocks/norm/test_parity.py", "tests/models", "tests/training/test_trainer.py", "tests/training/test_loop.py",
    "--deselect=tests/training/test_loop.py::test_a_changed_environment_is_reported",  # expects kernels to be on
]  # fmt: skip
"""Tests that pass with any implementation and import no kernels."""


def run_tests(selection: list[str], folder: Path, *options: str, **environment: str) -> None:
    """Run tests in a process with these environment variables and a separate numba cache."""
    faulthandler.cancel_dump_traceback_later()  # folders exceed the per-test limit
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    quietly = ["-p", "no:xdist", "-p", "no:cacheprovider", "--tb=short", f"--basetemp={folder / 'tmp'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *quietly, *options, *selection],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**inherited, "NUMBA_CACHE_DIR": str(folder / "numba"), **environment},
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def run_on(processor: str, selection: list[str], folder: Path) -> None:
    if reason := missing(processor):
        pytest.skip(reason)
    report = folder / "machine_code.json"
    environment = {**PROCESSORS[processor], "NORMSCOPE_MACHINE_CODE": str(report)}
    run_tests(selection, folder, "-p", "tests.portability.machine_code", **environment)
    kernels = json.loads(report.read_text())
    assert any(name.startswith("normscope.ops.fused.row_norm") for name in kernels)
    if processor in REGISTERS:
        foreign = {name: used for name, used in kernels.items() if set(used) - REGISTERS[processor]}
        assert foreign == {}
        assert any(max(REGISTERS[processor]) in used for used in kernels.values())  # the widest registers are used


def test_key_tests_without_avx512(tmp_path: Path) -> None:
    run_on("avx2", KEY_TESTS, tmp_path)


def test_registers_in_assembly() -> None:
    assert registers("vaddps %zmm1, %zmm2, %zmm31\n movaps %xmm0, (%rax)") == ["xmm", "zmm"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("processor", PROCESSORS)
def test_on_other_cpus(processor: str, tmp_path: Path) -> None:
    # The kernel tests set the number of threads themselves.
    run_on(processor, [name for name in NUMERIC if "threads" not in processor or name != "tests/ops"], tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["disabled", "not installed"])
def test_without_kernels(how: str, tmp_path: Path) -> None:
    if how == "disabled":
        run_tests(WITHOUT_KERNELS, tmp_path, NORMSCOPE_KERNELS="reference")
    else:
        notice = "ignore:the fused kernels are not available:RuntimeWarning"
        run_tests(WITHOUT_KERNELS, tmp_path, "-p", "tests.portability.without_numba", "-W", notice)
