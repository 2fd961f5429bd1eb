"""Every test of the norms runs on every path that computes them."""

from collections.abc import Iterator

import pytest

from tests.blocks.norm.cases import PATHS


@pytest.fixture(params=list(PATHS), autouse=True, scope="session")
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    with PATHS[request.param]():
        yield request.param
