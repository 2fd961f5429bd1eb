"""Every test of the norms runs on every path that computes them."""

from collections.abc import Iterator

import pytest

from tests.blocks.norm.cases import PATHS


# For a module, not for the session: it would still hold in whatever other tests the worker runs in between.
@pytest.fixture(params=list(PATHS), autouse=True, scope="module")
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    with PATHS[request.param]():
        yield request.param
