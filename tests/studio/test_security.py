"""The server talks to this user's browser only, and a request cannot leave the runs folder."""

from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from normscope.errors import NormscopeError
from normscope.studio.security import Guard
from normscope.studio.state import StudioState

TOKEN, PORT = "secret", 8000
GOOD = {"authorization": f"Bearer {TOKEN}"}


def client() -> TestClient:
    return TestClient(Guard(PlainTextResponse("hello"), TOKEN, PORT), base_url=f"http://127.0.0.1:{PORT}")


def test_token_is_required() -> None:
    assert client().get("/").status_code == 403
    assert client().get("/", params={"token": "guess"}).status_code == 403
    assert client().get("/", headers={"cookie": f"normscope-{PORT}=guess"}).status_code == 403
    assert client().get("/", headers=GOOD).text == "hello"


def test_token_in_the_address_becomes_a_cookie() -> None:
    browser = client()
    response = browser.get("/", params={"token": TOKEN})
    assert response.status_code == 200
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert browser.get("/").text == "hello"


@pytest.mark.parametrize("host", ["evil.example:8000", "127.0.0.1:9", "127.0.0.1", "127.0.0.1.evil.example:8000", ""])
def test_other_hosts_are_refused(host: str) -> None:
    assert client().get("/", headers={**GOOD, "host": host}).status_code == 403


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"LOCALHOST:{PORT}", f"[::1]:{PORT}"])
def test_own_names_are_accepted(host: str) -> None:
    assert client().get("/", headers={**GOOD, "host": host, "origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:9"])
def test_other_origins_are_refused(origin: str) -> None:
    assert client().get("/", headers={**GOOD, "origin": origin}).status_code == 403


def test_other_sites_are_refused() -> None:
    assert client().get("/", headers={**GOOD, "sec-fetch-site": "cross-site"}).status_code == 403


def test_page_may_only_talk_to_its_server() -> None:
    policy = client().get("/", headers=GOOD).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "http" not in policy


@pytest.mark.parametrize(
    "name", ["..", ".", "", "/etc", "../outside", "inside/../../outside", "link", "a\0b", "x" * 999]
)
def test_runs_are_named_not_paths(tmp_path: Path, name: str) -> None:
    outside, runs = tmp_path / "outside", tmp_path / "runs"
    for folder in (outside, runs):
        folder.mkdir()
    for file in ("config.json", "manifest.json"):
        (outside / file).write_text("{}")
    (runs / "link").symlink_to(outside)
    with pytest.raises(NormscopeError, match="there is no run"):
        StudioState(runs).run_folder(name)
