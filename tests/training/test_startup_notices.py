"""What is told before the first step."""

from pathlib import Path

import pytest
import torch

from normscope.ops.kernel_mode import reference_kernels
from normscope.training.startup_notices import startup_notices


def test_compiling_is_told_where_it_lies_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def notices() -> list[str]:
        return startup_notices(0, [], [], [], torch.device("cpu"))

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    (notice,) = notices()
    assert notice.startswith("compiling kernels for this machine")
    with reference_kernels():
        assert notices() == []  # nothing is compiled then
    monkeypatch.setattr("normscope.training.startup_notices.kernels", lambda _: None)  # as if numba were missing
    assert notices() == []
    monkeypatch.undo()
    (tmp_path / "rows.nbi").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert notices() == []
