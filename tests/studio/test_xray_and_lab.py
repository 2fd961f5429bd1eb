"""The tabs "X-ray" and "Lab", through the server."""

import json
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from normscope.diagnostics.record_json import save_record
from normscope.errors import ConfigError
from normscope.inspection.xray import XrayResult, xray_target
from normscope.studio.server import create_app
from normscope.studio.state import StudioState
from normscope.studio.views import xray
from normscope.studio.views.xray import XrayRequest
from normscope.studio.xray_records import MAX_UPLOADED, KeptRecord, XrayRecords
from tests.studio.serving import RUN

PUBLISHED = Path(__file__).parents[2] / "docs" / "lab"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(RUN, folder / "small")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("normscope.studio.server.static_folder", lambda: folder)  # these tests need no page
        app = create_app(StudioState(folder, PUBLISHED), "secret", 80)
    return TestClient(
        app, base_url="http://127.0.0.1:80", headers={"authorization": "Bearer secret", "host": "127.0.0.1:80"}
    )


def test_xray_of_a_run_and_its_report(client: TestClient) -> None:
    found = client.post("/api/xray", json={"target": "run:small"}).json()
    assert found["modules"][0]["kind"] == "GPT"
    assert any(module["rms"] for module in found["modules"])
    report = client.get(f"/xray/{found['key']}")
    assert report.status_code == 200
    assert "<title>X-ray of" in report.text
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts;")  # lets its script run
    assert client.get("/xray/unknown").status_code == 404


def test_a_run_is_a_run_whatever_else_is_in_its_folder(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "small")
    (tmp_path / "small" / "step-1.json").write_text("{}")
    studio = StudioState(tmp_path)
    key = str(xray.xray(studio, XrayRequest("run:small"))["key"])
    assert studio.xrays.get(key).result.record.label.startswith("small step ")


def test_uploaded_records_are_dropped_when_they_are_too_large_together() -> None:
    records, result = XrayRecords(), XrayResult((), [])
    keys = [records.add(KeptRecord("one", result, uploaded=MAX_UPLOADED // 2)) for _ in range(3)]
    with pytest.raises(ConfigError, match="no longer in memory"):
        records.get(keys[0])
    assert [records.get(key).label for key in keys[1:]] == ["one", "one"]


def test_two_xrays_are_compared(client: TestClient) -> None:
    one = client.post("/api/xray", json={"target": "run:small"}).json()
    same = client.post("/api/xray", json={"target": "run:small"}).json()
    other = client.post("/api/xray", json={"target": "llama"}).json()
    equal = client.post("/api/xray/diff", json={"before": one["key"], "after": same["key"]}).json()
    assert equal["forward"] is None
    assert equal["backward"] is None
    different = client.post("/api/xray/diff", json={"before": one["key"], "after": other["key"]}).json()
    assert any(module["only_in"] is not None for module in different["modules"])


def test_uploaded_record(client: TestClient, tmp_path: Path) -> None:
    record = xray_target(RUN).record
    save_record(record, tmp_path / "xray.json")
    data = (tmp_path / "xray.json").read_bytes()
    assert client.post("/api/xray/upload", content=data).json()["model"] == record.model
    for hostile in (
        b"",
        b"{}",
        b"[" * 100_000,
        b"\xff\xfe",
        data[:-40],
        data.replace(b'"version": 1', b'"version": 99'),
    ):
        answer = client.post("/api/xray/upload", content=hostile)
        assert answer.status_code == 400
        assert str(tmp_path.parent) not in answer.text
        assert "uploaded.json" not in answer.text
    assert client.post("/api/xray/upload", content=b" " * (33 * 2**20)).status_code == 413


@pytest.mark.parametrize("target", ["run:..", "run:/etc", "gpt5", "", "tests.studio:run", "/tmp/model.py:f"])
def test_only_presets_and_runs_are_xrayed(client: TestClient, target: str) -> None:
    answer = client.post("/api/xray", json={"target": target})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"target": 3}', b'{"target": "llama", "extra": 1}', b"\xff"])
def test_malformed_requests(client: TestClient, body: bytes) -> None:
    assert client.post("/api/xray", content=body).status_code == 422


def test_large_requests_are_refused(client: TestClient) -> None:
    assert client.post("/api/xray", content=b" " * (5 * 2**20)).status_code == 413


def test_claims_with_verdicts_and_figures(client: TestClient) -> None:
    claims = client.post("/api/lab", json={}).json()
    assert [claim["number"] for claim in claims] == sorted(claim["number"] for claim in claims)
    published = json.loads((PUBLISHED / "claims" / f"{claims[0]['name']}.json").read_text())
    assert claims[0]["status"] == published["verdict"]
    claim = client.post("/api/lab/claim", json={"name": claims[0]["name"]}).json()
    assert claim["answers"]
    assert claim["charts"][0].startswith("<figure")
    assert claim["rule"]


@pytest.mark.parametrize("endpoint", ["claim", "run", "stop", "follow"])
def test_unknown_claim(client: TestClient, endpoint: str) -> None:
    assert client.post(f"/api/lab/{endpoint}", json={"name": "../../etc/passwd"}).status_code == 400
