"""The endpoints of the tab Runs: the list, following a run, starting, stopping and resuming, uploads and reports."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from normscope.errors import ConfigError
from normscope.runs import list_runs
from normscope.runs.events import SampleEvent, ValidationEvent
from normscope.runs.follow_metrics import MetricsPosition, read_new_metrics
from normscope.runs.list_runs import RunSummary
from normscope.runs.metrics_file import MetricsFile, read_metrics
from normscope.runs.run import Run
from normscope.storage.lock import locked
from normscope.studio import jobs, uploads
from normscope.studio.endpoints import NoArguments, encode
from normscope.studio.state import StudioState
from normscope.studio.views import block, embedding, playground, runs, xray
from normscope.studio.views.runs import (
    FollowRequest,
    RecipeRequest,
    ResumeRequest,
    RunRequest,
    StartRequest,
)
from tests.studio.conftest import client_of


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Iterator[StudioState]:
    """A studio whose runs may be changed."""
    shutil.copytree(trained, tmp_path / "runs")
    studio = StudioState(tmp_path / "runs")
    yield studio
    studio.close()


class FakeJobs(jobs.Jobs):
    """Jobs that are noted, not started."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[list[str]] = []

    def start(self, kind: str, subject: str, arguments: Any) -> Any:
        self.started.append(list(arguments))


def test_the_list_has_runs_and_damaged_ones_but_no_links(copied: StudioState) -> None:
    (copied.runs / "linked").symlink_to(copied.runs / "small")
    shutil.copytree(copied.runs / "small", copied.runs / "broken")
    (copied.runs / "broken" / "config.json").write_text("{}")
    found = runs.list_all(copied, NoArguments())
    assert [(run["name"], run["status"], run["step"], run["job"]) for run in found["runs"]] == [
        ("small", "stopped", 4, None)
    ]
    assert [run["name"] for run in found["damaged"]] == ["broken"]
    assert runs.list_all(StudioState(copied.runs / "nothing"), NoArguments()) == {
        "runs": [],
        "damaged": [],
        "starting": [],
    }


def test_the_newest_run_comes_first_everywhere(copied: StudioState) -> None:
    """By the last change of any of its files. Runs in training come before all others, by name."""
    for name, hours in (("new", 3), ("older", 1), ("now", 0), ("also-now", 2)):
        shutil.copytree(copied.runs / "small", copied.runs / name)
        for path in (copied.runs / name).rglob("*"):
            os.utime(path, (2e9, 2e9 + 3600 * hours))
    options = [view.options(copied, NoArguments())["runs"] for view in (block, xray)]
    lists = [*options, embedding.tokenizers(copied, NoArguments())["runs"]]
    lists.append([model["name"] for model in playground.models(copied, NoArguments())["models"]])
    assert lists == 4 * [["new", "also-now", "older", "now", "small"]]
    with locked(copied.runs / "now"), locked(copied.runs / "also-now"):
        listed = runs.list_all(copied, NoArguments())["runs"]
    assert [run["name"] for run in listed] == ["also-now", "now", "new", "older", "small"]


def test_the_list_sends_no_paths_and_leaves_out_names_that_are_not_unicode(copied: StudioState) -> None:
    shutil.copytree(copied.runs / "small", os.fsdecode(os.fsencode(copied.runs) + b"/\xff"))
    (item,) = runs.follow(copied, FollowRequest("small"))
    assert any(event["kind"] == "checkpoint" for event in item["events"])
    listed = runs.list_all(copied, NoArguments())
    assert [run["name"] for run in listed["runs"]] == ["small"]
    assert "/" not in "".join(event["path"] for event in item["events"] if event["kind"] == "checkpoint")
    assert str(copied.runs).encode() not in encode(listed)


def test_the_list_reads_a_run_again_when_it_changed(copied: StudioState, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def summarize(folder: Path) -> RunSummary:
        read.append(folder)
        return list_runs.summarize(folder)

    monkeypatch.setattr(runs, "summarize", summarize)
    first = runs.list_all(copied, NoArguments())
    assert runs.list_all(copied, NoArguments()) == first
    assert len(read) == 1
    file = MetricsFile(copied.runs / "small" / "metrics.jsonl")
    file.on_event(ValidationEvent(4, 0.5, 0.5, True, 1.0))
    file.close()
    (run,) = runs.list_all(copied, NoArguments())["runs"]
    assert run["best_loss"] == 0.5


def test_details_options_and_plans(studio: StudioState) -> None:
    details = runs.details(studio, RunRequest("small"))
    assert details["model"].startswith("GPT of 2 blocks, width 16, 2 heads, context 16")
    options = runs.options(studio, NoArguments())
    assert {one["name"] for one in options["recipes"]} == {"dial", "sprint"}
    small, large = (runs.plan(studio, RecipeRequest(depth=depth)) for depth in (2, 4))
    assert (small["width"], large["width"]) == (64, 128)
    assert small["parameters"] < large["parameters"]
    with pytest.raises(ConfigError, match="recipe"):
        runs.plan(studio, RecipeRequest(recipe="stew"))


def test_the_tokenizer_of_a_plan(studio: StudioState) -> None:
    assert runs.options(studio, NoArguments())["tokenizers"] == ["auto", "characters", "bytes", "bpe"]
    by_size, in_bytes = (
        runs.plan(studio, RecipeRequest(**one)) for one in ({"vocab_size": 512}, {"tokenizer": "bytes"})
    )
    assert [(plan["tokenizer"], plan["vocab_size"]) for plan in (by_size, in_bytes)] == [("bpe", 512), ("bytes", 257)]
    assert in_bytes["parameters"] < by_size["parameters"]
    with pytest.raises(ConfigError, match="fixed vocabulary"):
        runs.plan(studio, RecipeRequest(tokenizer="characters", vocab_size=512))


def test_following_a_finished_run_gives_all_events_and_ends(studio: StudioState) -> None:
    (item,) = runs.follow(studio, FollowRequest("small"))
    wanted = read_metrics(studio.runs / "small" / "metrics.jsonl")
    assert [event["kind"] for event in item["events"]] == [event["kind"] for event in wanted]
    assert (item["training"], item["restarted"], item["job"]) == (False, False, None)
    started = next(event for event in item["events"] if event["kind"] == "started")
    assert "folder" not in started
    (again,) = runs.follow(studio, FollowRequest("small", item["position"]))
    assert (again["events"], again["restarted"]) == ([], False)


def test_a_followed_run_continues_after_a_position_and_starts_over_after_a_resume(copied: StudioState) -> None:
    path = copied.runs / "small" / "metrics.jsonl"
    whole = read_metrics(path)
    first = read_new_metrics(path, max_bytes=1)
    assert (first.events, first.complete) == (whole[:1], False)
    rest = read_new_metrics(path, first.position)
    assert (rest.events, rest.complete, rest.restarted) == (whole[1:], True, False)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])  # a line that is being written
    assert read_new_metrics(path).events == whole[:-1]
    assert read_new_metrics(path, rest.position).restarted  # the last line is gone
    path.write_bytes(b"".join([*lines[:3], *lines[:9]]))  # as long as before, but something else
    changed = read_new_metrics(path, MetricsPosition(rest.position.bytes, rest.position.crc32))
    assert (changed.restarted, changed.events) == (True, [*whole[:3], *whole[:9]])
    path.unlink()
    assert read_new_metrics(path, rest.position) == ([], MetricsPosition(), True, True)


def test_lone_surrogates_in_a_sample_are_replaced(copied: StudioState) -> None:
    file = MetricsFile(copied.runs / "small" / "metrics.jsonl")
    file.on_event(SampleEvent(4, "a\ud800", "b"))
    file.close()
    (item,) = runs.follow(copied, FollowRequest("small"))
    sent = json.loads(encode(item))
    assert sent["events"][-1]["prompt"] == "a?"
    assert sent["position"]["bytes"] == item["position"].bytes


def test_start_gives_every_setting_as_one_argument(copied: StudioState) -> None:
    fake = copied.jobs = FakeJobs()
    runs.start(
        copied, StartRequest(name="new", depth=2, tokenizer="bytes", steps=10, matrix_lr=0.01, prompt="--out=/x")
    )
    (arguments,) = fake.started
    assert arguments[:3] == ["train", f"--out={copied.runs / 'new'}", "--recipe=dial"]
    assert arguments[3:] == ["--depth=2", "--tokenizer=bytes", "--steps=10", "--matrix-lr=0.01", "--prompt=--out=/x"]
    for name, words in (("small", "already a folder"), ("uploads", "already a folder")):
        with pytest.raises(ConfigError, match=words):
            runs.start(copied, StartRequest(name=name))
    with pytest.raises(ConfigError, match="no longer there"):
        runs.start(copied, StartRequest(name="new", text="text-0123456789abcdef.txt"))


def test_settings_that_cannot_work_are_refused_before_a_process_starts(copied: StudioState) -> None:
    fake = copied.jobs = FakeJobs()
    with pytest.raises(ConfigError, match="fix: a smaller --depth"):
        runs.start(copied, StartRequest(name="new", depth=200))
    assert not fake.started


def test_resume_refuses_what_has_no_effect(studio: StudioState, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="already has 8 steps"):
        runs.resume(studio, ResumeRequest("small", 8))
    monkeypatch.setattr(Run, "is_done", lambda run: True)
    with pytest.raises(ConfigError, match="the run is done"):
        runs.resume(studio, ResumeRequest("small"))
    with pytest.raises(ConfigError, match="not started from this page"):
        runs.stop(studio, RunRequest("small"))


@pytest.mark.usefixtures("torch_kernels")
def test_a_run_is_extended_and_stopped_in_a_process_of_its_own(copied: StudioState) -> None:
    """Its events arrive while it trains, and it saves when it is stopped."""
    runs.resume(copied, ResumeRequest("small", 100_000))
    with pytest.raises(ConfigError, match="already"):
        runs.resume(copied, ResumeRequest("small", 200_000))
    events: list[Any] = []
    stopped = False
    deadline = time.monotonic() + 120
    for item in runs.follow(copied, FollowRequest("small")):
        assert time.monotonic() < deadline
        if item.get("restarted"):  # resuming drops what came after the checkpoint
            events.clear()
        events += item.get("events", [])
        if not stopped and sum(event["kind"] == "step" for event in events) > 6:
            assert runs.stop(copied, RunRequest("small"))["job"]["stopping"]
            stopped = True
    job = copied.jobs.find("train", "small")
    assert job is not None
    assert job.status == "stopped"
    assert (events[-1]["kind"], events[-1]["reason"]) == ("finished", "stopped")
    (run,) = runs.list_all(copied, NoArguments())["runs"]
    assert (run["status"], run["step"], run["steps"]) == ("stopped", events[-1]["step"], 100_000)
    assert run["step"] > 4


@pytest.mark.usefixtures("torch_kernels")
def test_the_output_of_a_run_that_fails_is_shown(copied: StudioState) -> None:
    stored = uploads.store(copied, b"too short")
    runs.start(copied, StartRequest(name="new", text=stored["name"], depth=1))
    items = [item for item in runs.follow(copied, FollowRequest("new")) if "job" in item]
    assert (items[-1]["job"]["status"], items[-1]["training"]) == ("failed", False)
    assert "error: " in items[-1]["job"]["output"]
    (starting,) = runs.list_all(copied, NoArguments())["starting"]
    assert (starting["name"], starting["status"]) == ("new", "failed")


def test_uploads(copied: StudioState, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(copied)

    def upload(data: bytes) -> Any:
        return client.post("/api/runs/upload", content=data)

    stored = upload("Grüße, <b>world</b>\n".encode()).json()
    assert (stored["characters"], stored["bytes"], stored["preview"]) == (20, 22, "Grüße, <b>world</b>\n")
    assert uploads.upload_path(copied, stored["name"]).read_text() == "Grüße, <b>world</b>\n"
    for data, words in (
        (b"\xff\xfe", "not UTF-8"),
        (b"a\0b", "NUL"),
        (b" \n", "empty"),
        (b"", "empty"),
        (b"a\xc3", "UTF-8"),
    ):
        answer = upload(data)
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]
    monkeypatch.setattr(runs, "MAX_UPLOAD", 10)
    client = client_of(copied)
    assert upload(b"x" * 11).status_code == 413
    monkeypatch.setattr(uploads, "MAX_UPLOADS", 1)
    assert "already" in upload(b"x").json()["error"]["message"]
    assert [path.name for path in (copied.runs / "uploads").iterdir()] == [stored["name"]]
    (copied.runs / "uploads").rename(copied.runs / "elsewhere")
    (copied.runs / "uploads").symlink_to(copied.runs / "elsewhere")
    assert upload(b"x").status_code == 400  # never through a link


def test_the_report_is_a_page_without_the_rights_of_the_studio(client: TestClient) -> None:
    answer = client.get("/report/small")
    assert answer.text.startswith("<!DOCTYPE html>")
    assert answer.headers["Content-Security-Policy"].startswith("sandbox allow-scripts;")
    for name in ("nothing", "%2e%2e%2fsmall", "small%2f..%2fsmall"):
        assert client.get(f"/report/{name}").status_code == 404


@pytest.mark.parametrize(
    "request_",
    [
        {"name": "../x"},
        {"name": "a\n"},
        {"name": ""},
        {"name": "x" * 41},
        {"name": "a", "text": "../small/config.json"},
        {"name": "a", "steps": 0},
        {"name": "a", "depth": 10**9},
        {"name": "a", "lr": -1},
        {"name": "a", "tokenizer": "/tmp/tokenizer.json"},
        {"name": "a", "out": "/tmp/x"},
    ],
    ids=str,
)
def test_hostile_requests_start_nothing(client: TestClient, studio: StudioState, request_: dict[str, Any]) -> None:
    assert client.post("/api/runs/start", json=request_).status_code == 422
    assert not list(studio.jobs)


def test_names_of_runs_are_no_paths(client: TestClient) -> None:
    for name in ("../small", "small/../small", "/etc", ".", "", "x" * 201):
        for endpoint in ("details", "resume", "stop", "follow"):
            assert client.post(f"/api/runs/{endpoint}", json={"run": name}).status_code in (400, 422)
