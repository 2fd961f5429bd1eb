"""Whether the kernels were compiled before, as far as numba's own files tell."""

from pathlib import Path

import pytest

from normscope.ops.numba_loader import has_compiled_kernels


def test_kept_code_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert not has_compiled_kernels()
    (tmp_path / "fused").mkdir()
    (tmp_path / "fused" / "rows.forward-12.py311.nbi").touch()
    assert has_compiled_kernels()
