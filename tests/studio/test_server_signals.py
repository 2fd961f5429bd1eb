"""Signals end the server only after it has stopped what the page started."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from normscope.studio.server import StudioServer
from normscope.studio.state import Studio


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_jobs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    closed: list[Studio] = []
    monkeypatch.setattr(Studio, "close", lambda studio: closed.append(studio))
    before = signal.getsignal(number)
    monkeypatch.chdir(tmp_path)
    server = StudioServer("runs")
    assert server.state.runs == tmp_path / "runs"

    def kill() -> None:
        deadline = time.monotonic() + 30
        while not server._server.started and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=kill)
    thread.start()
    server.run()
    thread.join()
    assert closed == [server.state]
    assert signal.getsignal(number) == before
