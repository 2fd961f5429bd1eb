"""Whether kernels run: without numba, where it fails, in forked children, under several threads and processes."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from numba.core.caching import CacheImpl, NullCache
from numba.core.errors import TypingError

import normscope as ns
from normscope.ops import kernel_mode
from normscope.ops.fused import compiler
from normscope.ops.fused import row_norm as loops


def in_a_new_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_IN_ONE_PROCESS = """
import contextlib, json, os, re, sys, torch, warnings

# First a process without numba, which has torch already.
read, write = os.pipe()
child = os.fork()
if child == 0:
    sys.modules["numba"] = None
    import normscope
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        norm = normscope.LayerNorm(8)
        ys = [norm(torch.arange(16.0).reshape(2, 8)) for _ in range(3)]
    without = [len(notices), "not available" in str(notices[0].message), torch.equal(ys[0], ys[2])]
    os.write(write, json.dumps(without).encode())
    os._exit(0)
os.waitpid(child, 0)
os.close(write)
without_numba = json.loads(os.read(read, 1000))

import normscope
with contextlib.suppress(ImportError):
    import scipy.linalg
torch.set_num_threads(2)
torch.randn(300, 300) @ torch.randn(300, 300)
norm, x = normscope.LayerNorm(96), torch.randn(700, 96)
tasks = lambda: len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 0
before = tasks()
few = lambda y: y[::100, ::10].tolist()
expected = few(norm(x))
maps = open("/proc/self/maps") if os.path.exists("/proc/self/maps") else []
pool = [tasks() - before, len({line.split()[-1] for line in maps if re.search("lib(g|i)?omp", line)})]

child = os.fork()
if child == 0:
    os._exit(0 if few(norm(x)) == expected else 1)
_, status = os.waitpid(child, 0)
forked = [os.waitstatus_to_exitcode(status), few(norm(x)) == expected]

class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return norm(torch.full((700, 96), float(i)) + torch.arange(96)).detach()
loaded = list(torch.utils.data.DataLoader(Data(), num_workers=2, batch_size=None))
print(json.dumps({"without numba": without_numba, "pool": pool, "forked": forked,
    "loaded": [len(loaded), all(torch.equal(y, Data()[i]) for i, y in enumerate(loaded))]}))
"""


@pytest.fixture(scope="module")
def process() -> dict[str, list[Any]]:
    """What came out in a process with two threads, which then forks, and then loads data in workers."""
    ns.LayerNorm(96)(torch.zeros(700, 96))  # compiled here, where no other worker of pytest compiles it, too
    found: dict[str, list[Any]] = json.loads(in_a_new_process(_IN_ONE_PROCESS))
    return found


def test_a_forked_child_computes_the_same(process: dict[str, list[Any]]) -> None:
    """As a DataLoader's workers are: the parent's pool of threads does not run in them.

    Only a few numbers are compared, because torch's own operations on many would wait for torch's pool for ever.
    """
    assert process["forked"] == [0, True]


def test_the_workers_of_a_data_loader(process: dict[str, list[Any]]) -> None:
    assert process["loaded"] == [8, True]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_one_pool_of_threads(process: dict[str, list[Any]]) -> None:
    """No OpenMP library but torch's own is loaded, and numba starts no threads.

    Where SciPy is installed numba loads its linear algebra, whose library has a thread that waits; so that comes first.
    """
    assert process["pool"] == [0, 1]


def test_without_numba_the_steps_run_after_one_notice(process: dict[str, list[Any]]) -> None:
    assert process["without numba"] == [1, True, True]


def test_where_nothing_can_be_written_the_code_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])

    def twice(x: float) -> float:
        return 2 * x

    kernel: Any = compiler.compiled(twice)
    assert isinstance(kernel._cache, NullCache)
    assert kernel(3.0) == 6.0


def test_the_switch_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NORMSCOPE_KERNELS", raising=False)
    assert kernel_mode._forced_by_environment() is None
    for chosen in ("reference", "torch", "fused"):
        monkeypatch.setenv("NORMSCOPE_KERNELS", chosen)
        assert kernel_mode._forced_by_environment() == chosen
    monkeypatch.setenv("NORMSCOPE_KERNELS", "torch")
    spec = importlib.util.spec_from_file_location("imported_again", kernel_mode.__file__)
    assert spec is not None
    assert spec.loader is not None
    imported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(imported)
    assert (imported.select_backend(), imported.forced()) == ("reference", "torch")


def test_a_kernel_that_does_not_compile_is_replaced_after_one_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise TypingError("no such thing")

    monkeypatch.setattr(loops, "forward", broken)
    monkeypatch.setattr(kernel_mode, "_enabled", True)
    norm, x = ns.LayerNorm(65), torch.randn(5, 65, requires_grad=True)
    with pytest.warns(RuntimeWarning, match=r"not available \(TypingError: no such thing\)"):
        y = norm(x)
    y.sum().backward()
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (65,)))
    torch.testing.assert_close(norm(x), y)  # and no second notice, which would be an error here
    assert not kernel_mode._enabled


@pytest.mark.exhaustive
def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    """Neither beside the package nor in the home is there a place to keep compiled code."""
    code = """
import sys, numba.core.caching as caching
caching.CacheImpl._locator_classes = []
import torch, normscope
y = normscope.RMSNorm(64)(torch.randn(3, 64))
print(bool(y.isfinite().all()))
"""
    assert in_a_new_process(code).split() == ["True"]


_SMALL_KERNEL = """
import numpy
from normscope.ops.fused.moments import columns as kernel
x, squares = numpy.ones((3, 4), numpy.float32), numpy.zeros(4)
largest, active = numpy.zeros((2, 4), numpy.float32)
kernel(x.ctypes.data, 3, 4, *(array.ctypes.data for array in (squares, largest, active)))
assert squares.tolist() == active.tolist() == [3] * 4
"""
_KERNEL_WITH_THREADS = """
import torch
from normscope.ops.activations import activate
from normscope.ops.fused.activations import forward as kernel
activate("relu2", torch.randn(3, 64))
"""


@pytest.mark.exhaustive  # tests/ops/test_compiled_code.py keeps a kernel, too
@pytest.mark.parametrize("code", [_SMALL_KERNEL, _KERNEL_WITH_THREADS], ids=["small", "threads"])
def test_compiled_code_is_kept_between_processes(code: str, tmp_path: Path) -> None:
    code += "print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))"
    first = in_a_new_process(code, NUMBA_CACHE_DIR=str(tmp_path))
    second = in_a_new_process(code, NUMBA_CACHE_DIR=str(tmp_path))
    assert (first.split(), second.split()) == (["0", "1"], ["1", "0"])


@pytest.mark.exhaustive
def test_processes_under_torchrun(tmp_path: Path) -> None:
    """Each process has its share of the cores, and the kernels keep to it."""
    script = tmp_path / "train.py"
    script.write_text("""
import torch, normscope
from normscope.ops.threads import thread_pool_for
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(normscope.LayerNorm(256))
torch.manual_seed(0)
model(torch.randn(700, 256)).pow(2).sum().backward()
print(thread_pool_for(1 << 20)[0] == torch.get_num_threads(), bool(model.module.weight.grad.isfinite().all()))
torch.distributed.destroy_process_group()
""")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.stdout.count("True") == 4, done.stderr  # the two may write at once


def test_use_kernels_nests_and_refuses_unknown_names() -> None:
    with kernel_mode.use_kernels("reference"), kernel_mode.use_kernels("fused"):
        with kernel_mode.use_kernels("reference"):
            assert kernel_mode.forced() == "reference"
        assert kernel_mode.forced() == "fused"
    with pytest.raises(ns.NormscopeError, match="choose one of"), kernel_mode.use_kernels("numba"):  # type: ignore[arg-type]
        pass
