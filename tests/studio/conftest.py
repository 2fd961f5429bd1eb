"""A studio on a folder with one small run, and a client of its server."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from normscope.studio import server
from normscope.studio.state import StudioState
from tests.studio.serving import RUN

PORT, TOKEN = 8123, "secret"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with the run "small": 4 of 8 steps are done. Tests that change it copy it."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(RUN, folder / "small")
    return folder


@pytest.fixture
def studio(trained: Path) -> StudioState:
    return StudioState(trained)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page in place of the built front end, which the tests of the server don't need."""
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "index.html").write_text("<title>studio</title>")
    monkeypatch.setattr(server, "static_folder", lambda: tmp_path / "static")
    return tmp_path / "static"


def client_of(studio: StudioState) -> TestClient:
    app = server.create_app(studio, TOKEN, PORT)
    return TestClient(app, base_url=f"http://127.0.0.1:{PORT}", headers={"Authorization": f"Bearer {TOKEN}"})


@pytest.fixture
def client(studio: StudioState, page: Path) -> Iterator[TestClient]:
    with client_of(studio) as client:
        yield client


@pytest.fixture
def torch_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the test starts use torch's kernels: loading or compiling ours takes longer than training."""
    monkeypatch.setenv("NORMSCOPE_KERNELS", "torch")
