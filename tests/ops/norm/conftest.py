"""These tests are about the fused kernels, also for inputs for which torch's own operators would be chosen."""

from collections.abc import Iterator

import pytest

from normscope.ops.kernel_mode import use_kernels


@pytest.fixture(autouse=True)
def _fused() -> Iterator[None]:
    with use_kernels("fused"):
        yield
