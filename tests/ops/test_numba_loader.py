"""Whether the kernels were compiled before, as far as numba's own files tell."""

from pathlib import Path

import pytest

from normscope.ops.fused.code_cache import folder_name
from normscope.ops.numba_loader import has_compiled_kernels


def test_kept_code_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert not has_compiled_kernels()
    for version, is_found in (("kernels-of-another-version", False), (folder_name(), True)):
        folder = tmp_path / "fused" / version
        folder.mkdir(parents=True)
        (folder / "rows.forward-12.py311.nbi").touch()
        assert has_compiled_kernels() == is_found
