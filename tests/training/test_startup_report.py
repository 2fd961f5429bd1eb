"""Startup notices."""

from pathlib import Path

import pytest

from normscope.ops.fused.code_cache import folder_name
from normscope.ops.kernel_mode import reference_kernels
from normscope.training.loop import must_compile_kernels


def test_a_notice_about_compiling_only_if_kernels_will_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert must_compile_kernels()
    with reference_kernels():
        assert not must_compile_kernels()
    monkeypatch.setattr("normscope.training.loop.kernels_available", lambda: False)  # as if numba were missing
    assert not must_compile_kernels()
    monkeypatch.undo()
    folder = tmp_path / folder_name()
    folder.mkdir()
    (folder / "rows.nbi").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert not must_compile_kernels()
