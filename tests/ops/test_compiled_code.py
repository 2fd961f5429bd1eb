"""Compiled code: the same bits whether it was compiled or loaded, and no stale code after a change."""

import ast
import errno
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

import normscope
from normscope.ops import fused
from normscope.ops.fused import code_cache
from normscope.ops.fused.code_cache import KEPT_FOLDERS, folder_name, remove_old_folders
from normscope.ops.fused.compiler import compiled
from tests.ops.every_kernel import kernel_modules

ROOT = Path(__file__).parents[2]


def start(*command: str, cache: Path, source: Path = ROOT / "src") -> subprocess.Popen[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    return subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment)


def output(process: subprocess.Popen[str]) -> str:
    found, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return found


def run(*command: str, cache: Path, source: Path = ROOT / "src") -> str:
    return output(start(*command, cache=cache, source=source))


# Two calls, so that LLVM does not inline the function but calls it.
_KERNELS = """
from normscope.ops.fused.compiler import compiled
from tests.ops.every_kernel import kernel_modules
from normscope.ops.fused.decode_rows import apply_rotary

@compiled
def rotate(x, y, cos, sin, half, count):
    for i in range(count):
        apply_rotary(x + 8 * i * half, cos, sin, half)
    for i in range(count):
        apply_rotary(y + 8 * i * half, cos, sin, half)
"""
_ROTATE = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from kernels_for_test import rotate
for half in (16, 64):
    numbers = np.random.default_rng(0).standard_normal((42, half)).astype(np.float32)
    x, y, (cos, sin) = numbers[:20].copy(), numbers[20:40].copy(), numbers[40:].copy()
    rotate(x.ctypes.data, y.ctypes.data, cos.ctypes.data, sin.ctypes.data, half, 10)
    print(x.tobytes().hex(), y.tobytes().hex())
print("compiled" if rotate.stats.cache_misses else "loaded")
"""


@pytest.mark.exhaustive  # three processes that compile; the folder's name has tests of its own
def test_loaded_code_gives_the_same_bits_and_a_change_of_a_called_function_is_noticed(tmp_path: Path) -> None:
    """The function is in another file than the kernel: numba alone would load the old code."""
    (tmp_path / "kernels_for_test.py").write_text(_KERNELS)
    source, cache = tmp_path / "src", tmp_path / "cache"
    without_kernels = shutil.ignore_patterns("kernels-*")
    shutil.copytree(Path(normscope.__file__).parent, source / "normscope", ignore=without_kernels)

    def rotate() -> tuple[list[str], str]:
        *bits, how = run("-c", _ROTATE, str(tmp_path), cache=cache, source=source).split()
        return bits, how

    (first, how), (second, how_then) = rotate(), rotate()
    assert (how, how_then) == ("compiled", "loaded")
    assert first == second
    called = source / "normscope" / "ops" / "fused" / "decode_rows.py"
    before = called.read_text()
    called.write_text(before.replace("a * cosines[j] - b * sines[j]", "a * cosines[j] + b * sines[j]"))
    assert called.read_text() != before
    changed, how = rotate()
    assert how == "compiled"
    assert changed != first


@pytest.mark.exhaustive
def test_every_kernel_gives_the_same_bits_in_every_process(tmp_path: Path) -> None:
    """Compiled, loaded, loaded in another order, compiled in another order, and compiled with what was loaded."""
    found: list[dict[str, Any]] = []
    for cache, *order in (("one",), ("one",), ("one", "reversed"), ("other", "reversed"), ("one", "reversed")):
        found.append(json.loads(run("-m", "tests.ops.every_kernel", *order, cache=tmp_path / cache)))
        if len(found) == 4:  # as if other processes had used only some of the kernels
            for index in sorted((tmp_path / "one").rglob("*.nbi"))[::2]:
                index.unlink()
    assert [one["uncalled"] for one in found] == [[]] * 5
    first = found[0]["checksums"]
    for other in found[1:]:
        assert [name for name, checksum in other["checksums"].items() if checksum != first[name]] == []


def test_no_generator_is_cached() -> None:
    """numba loads it, but cannot compile a caller with it: a KeyError would disable all kernels, in every process."""
    generators = [
        f"{module.__name__}.{name}"
        for module in kernel_modules()
        for name, kernel in vars(module).items()
        if isinstance(kernel, Dispatcher)
        and isinstance(vars(kernel)["_cache"], FunctionCache)
        and inspect.isgeneratorfunction(kernel.py_func)
    ]
    assert generators == []


@pytest.mark.exhaustive
def test_processes_that_compile_at_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "kernels_for_test.py").write_text(_KERNELS)
    processes = [start("-c", _ROTATE, str(tmp_path), cache=tmp_path / "cache") for _ in range(3)]
    assert len({tuple(output(process).split()[:-1]) for process in processes}) == 1
    assert run("-c", _ROTATE, str(tmp_path), cache=tmp_path / "cache").split()[-1] == "loaded"


def test_the_name_of_the_folder_covers_all_that_kernels_import() -> None:
    allowed = ("normscope.ops.fused.", "normscope.ops.registry")
    for file in Path(fused.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            imported = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not imported.startswith("normscope") or imported.startswith(allowed), (file.name, imported)


def test_a_change_of_any_kernel_source_is_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [Path(shutil.copy(str(source), tmp_path)) for source in code_cache._sources()]
    monkeypatch.setattr(code_cache, "_sources", lambda: copies)
    names = {folder_name.__wrapped__()}
    assert names == {folder_name()}  # by names and contents, not by where they are
    for copy in copies:
        copy.write_text(copy.read_text() + "\n")
        names.add(folder_name.__wrapped__())
    assert len(names) == 1 + len(copies)


def test_folders_of_other_versions_are_removed_but_for_the_last_ones(tmp_path: Path) -> None:
    current, unrelated = tmp_path / folder_name(), tmp_path / "other-package"
    others = [tmp_path / f"kernels-{i:02}" for i in range(KEPT_FOLDERS + 3)]
    for age, folder in enumerate([*others, current, unrelated]):
        folder.mkdir()
        (folder / "rows.nbi").touch()
        os.utime(folder, (1e9 - age, 1e9 - age))  # the current one is among the oldest
    remove_old_folders(current)
    assert {*tmp_path.iterdir()} == {*others[:KEPT_FOLDERS], current, unrelated}


def test_a_full_disk_does_not_stop_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: FunctionCache, sig: Any, data: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FunctionCache, "save_overload", fail)

    @compiled
    def twice(x):  # type: ignore[no-untyped-def]
        return x + x

    assert twice(np.float32(3)) == 6
