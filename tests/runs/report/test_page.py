"""report.html: valid, self-contained, safe, and built from partial runs too."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from normscope.errors import FileError
from normscope.models.config_json import config_to_json
from normscope.models.presets import nanochat
from normscope.runs.checksummed_folder import write_manifest
from normscope.runs.events import FinishedEvent, NoticeEvent, RunEvent, SampleEvent, SignalEvent
from normscope.runs.metrics_file import MetricsFile
from normscope.runs.report.page import small_charts, write_report
from normscope.runs.report.run_record import read_run_record
from normscope.storage.safe_folder import SafeFolder
from normscope.training.config import TrainConfig
from tests.training.observers.simulated import FLOOR_NATS, simulated_run, started, stepped, validated

WITHOUT_END, ENDING_ITSELF = {"meta"}, {"line", "path"}
EVIL = "</p></svg><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


class Page(HTMLParser):
    """Parses the page: balanced tags, text, and requested resources."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[tuple[str, str]] = []  # the innermost tag and its text
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in WITHOUT_END:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert tag in ENDING_ITSELF

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append((self.open[-1] if self.open else "", data))

    @property
    def text(self) -> str:
        return "\n".join(words for tag, words in self.words if tag not in ("script", "style"))


def config() -> dict[str, Any]:
    model = nanochat(depth=4, width=128, heads=4, vocab_size=65, context=64)
    return {
        "format": 1,
        "normscope": "0.1",
        "name": "tale",
        "corpus": {"folder": "corpus"},
        "model": config_to_json(model),
        "train": TrainConfig(steps=300, batch=32).to_json(),
        "something": "new",
    }


def make_run(folder: Path, events: Iterable[RunEvent], settings: Any = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config() if settings is None else settings), encoding="utf-8")
    write_manifest(SafeFolder(folder), ["config.json"])
    file = MetricsFile(folder / "metrics.jsonl")
    for event in events:
        file.on_event(event)
    file.close()
    return folder


def report(folder: Path, events: Iterable[RunEvent], settings: Any = None) -> tuple[str, Page]:
    path = write_report(make_run(folder, events, settings))
    assert path == folder / "report.html"
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


def test_complete_run(tmp_path: Path) -> None:
    _, page = report(tmp_path, simulated_run())
    for words in (
        "GPT of 4 blocks, width 128, 4 heads, context 64, rms ... [d] before each branch, relu2, rotary, QK-norm",
        "835 k parameters",
        "300 of 300 steps in 33 s on cpu, including validation",
        "; done",
        "1.3238",  # the validation loss
        "1.273",  # in bits per byte
        "0.473",  # above the floor
        f"floor {FLOOR_NATS:.3f}",
        "614 k",  # tokens
        "the text is read 2.5 times",
    ):
        assert words in page.text
    charts = [words for tag, words in page.words if tag == "b"]
    assert charts == [
        "Loss",
        "Bits per byte of the validation text",
        "Gradient norm before clipping",
        "Learning rates",
        "Speed",
        "Activation RMS per layer",
        "Gradient RMS per layer",
    ]
    assert [words for tag, words in page.words if tag == "h1"] == ["tale"]


def test_the_chart_of_the_learning_rates_has_their_values(tmp_path: Path) -> None:
    """For runs whose events have only the schedule, as those of 0.1.0, too: their peaks are in config.json."""
    record = read_run_record(make_run(tmp_path, simulated_run()))
    (chart,) = [chart for chart in small_charts(record) if chart.title == "Learning rates"]
    train = TrainConfig(steps=300, batch=32)
    assert [line.label for line in chart.lines] == ["matrix_lr", "lr"]
    assert [line.points[0] for line in chart.lines] == [(1, train.matrix_lr), (1, train.lr)]


def test_no_external_requests(tmp_path: Path) -> None:
    text, page = report(tmp_path, simulated_run())
    assert re.findall(r"https?:|//\w|url\(|@import", text) == []
    asking = {"src", "href", "xlink:href", "srcset", "action", "data", "poster"}
    assert [attributes for _, attributes in page.tags if asking & set(attributes)] == []
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    assert "prefers-color-scheme: dark" in text


def test_content_security_policy(tmp_path: Path) -> None:
    text, page = report(tmp_path, simulated_run())
    (script,) = [words for tag, words in page.words if tag == "script"]
    fingerprint = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes]
    assert policy is not None
    assert f"script-src 'sha256-{fingerprint}'" in policy
    assert policy.startswith("default-src 'none'")
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_samples_are_present_and_escaped(tmp_path: Path) -> None:
    samples = [SampleEvent(step, f"{EVIL} {step}", f"{EVIL}\n\x1b[31m\ud800 {step}") for step in range(10, 60, 10)]
    evil_layers = SignalEvent(5, [{"name": EVIL, "rms": 1.0, "grad_rms": 1.0}])
    settings = {**config(), "name": EVIL, EVIL: EVIL, "model": {"depth": EVIL, EVIL: {EVIL: EVIL}}}
    events = [started(), stepped(1), evil_layers, NoticeEvent(3, EVIL), *samples, FinishedEvent(60, EVIL, 1.0)]
    text, page = report(tmp_path, events, settings)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "img" not in {tag for tag, _ in page.tags}
    assert all(character == "\n" or character.isprintable() for character in text)
    for step in range(10, 60, 10):
        assert f"{EVIL} {step}" in page.text
        assert f"{EVIL}\n�[31m� {step}" in page.text
    heads = [words for tag, words in page.words if tag == "span" and re.fullmatch(r"step \d0", words)]
    assert heads == ["step 50", "step 40", "step 30", "step 20", "step 10"]  # newest first
    assert [tag for tag, _ in page.tags].count("details") == 1


def test_full_config_is_present(tmp_path: Path) -> None:
    _, page = report(tmp_path, simulated_run(20))
    rows = [words for tag, words in page.words if tag in ("th", "td")]
    for name, value in config()["train"].items():
        assert rows[rows.index(name, rows.index("steps")) + 1] == (
            value if isinstance(value, str) else json.dumps(value)
        )
    assert rows[rows.index("norm.scope") + 1] == "... [d]"
    assert rows[rows.index("something") + 1] == "new"


@pytest.mark.parametrize(
    "events",
    [
        [],
        [started()],
        [started(), stepped(1)],
        [started(), stepped(1, loss=math.nan), validated(1, math.nan)],
        [stepped(1), stepped(2)],
        [started(floor=None), stepped(1), validated(1, 2.0)],
        [started(), SignalEvent(1, []), SignalEvent(2, [{"name": "blocks.0", "rms": 0.0, "grad_rms": math.inf}])],
        [NoticeEvent(0, "hello")],
    ],
    ids=["empty", "started", "one step", "nan", "no start", "no floor", "strange signal", "notice"],
)
def test_partial_run(tmp_path: Path, events: list[RunEvent]) -> None:
    _, page = report(tmp_path, events)
    assert "not finished" in page.text
    assert ("No steps yet." in page.text) == (not any(event.kind == "step" for event in events))


@pytest.mark.parametrize("settings", [{}, {"model": None, "train": 3}, {"model": {"norm": None}}])
def test_partial_config(tmp_path: Path, settings: dict[str, Any]) -> None:
    _, page = report(tmp_path, simulated_run(20), settings)
    assert [words for tag, words in page.words if tag == "h1"] == [tmp_path.name]


def test_resumed_run_has_continuous_history(tmp_path: Path) -> None:
    first = [started(), *(stepped(step) for step in range(1, 11)), FinishedEvent(10, "stopped", 1.0)]
    then = [started(step=10), *(stepped(step) for step in range(11, 21))]
    record = read_run_record(make_run(tmp_path, [*first, *then]))
    assert record.end == {}
    assert record.start["step"] == 0
    assert record.seconds == pytest.approx(20 * 0.1)
    assert [step for step, _ in record.curve("step", "loss")] == list(range(1, 21))


def test_extended_run_has_its_new_number_of_steps(tmp_path: Path) -> None:
    first = [started(steps=10), *(stepped(step) for step in range(1, 11)), FinishedEvent(10, "done", 1.0)]
    then = [started(step=10, steps=20), *(stepped(step) for step in range(11, 21))]
    _, page = report(tmp_path, [*first, *then])
    assert "20 of 20 steps in" in page.text


def test_truncated_line_is_ignored_and_old_report_replaced(tmp_path: Path) -> None:
    report(tmp_path, simulated_run(20))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "st')
    (tmp_path / "report.html").write_text("old")
    assert "Loss" in Page(write_report(tmp_path).read_text(encoding="utf-8")).text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "manifest.json",
        "metrics.jsonl",
        "report.html",
    ]


def test_long_run_has_small_page(tmp_path: Path) -> None:
    events = [started(steps=5000), *(stepped(step, 1 + 3 / step, 5000) for step in range(1, 5001))]
    text, _ = report(tmp_path, events)
    assert len(text) < 400_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not a run: it has no config.json\nfix: "),
        ("{", "is not JSON"),
        ("[]", "is not valid: expected `object`, got `array`"),
    ],
)
def test_folder_that_is_not_a_run_raises(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
        write_manifest(SafeFolder(tmp_path), ["config.json"])
    with pytest.raises(FileError, match=re.escape(words)):
        write_report(tmp_path)


def test_run_without_steps_raises(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_manifest(SafeFolder(tmp_path), ["config.json"])
    with pytest.raises(FileError, match=r"metrics\.jsonl does not exist"):
        write_report(tmp_path)
