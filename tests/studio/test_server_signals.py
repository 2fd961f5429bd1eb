"""Signals end the server only after it has stopped what the page started."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from normscope.studio import server
from normscope.studio.state import StudioState

# In a process of its own: the server's event loop needs the main thread, where a browser's may be running already.
CODE = """
import os, signal, sys, threading, time
from pathlib import Path
from normscope.studio import server
from normscope.studio.state import StudioState

server.static_folder = lambda: Path.cwd()
closed = []
StudioState.close = lambda state: closed.append(state)
for number in (signal.SIGTERM, signal.SIGHUP):
    before = signal.getsignal(number)
    one = server.StudioServer("runs")
    assert one.state.runs == Path.cwd() / "runs"

    def kill():
        while not one._server.started:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=kill, daemon=True).start()
    one.run()
    assert closed.pop() is one.state
    assert signal.getsignal(number) == before
print("stopped twice")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_the_handlers_of_signals_stop_the_server(name: str, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number, closed, handled = getattr(signal, name), list[StudioState](), list[bool]()
    monkeypatch.setattr(StudioState, "close", lambda state: closed.append(state))
    before = signal.getsignal(number)
    one = server.StudioServer(page / "runs")

    def serve(sockets: object) -> None:
        assert signal.getsignal(number) != before  # otherwise the signal would end the tests
        signal.raise_signal(number)
        handled.append(one._server.should_exit)

    monkeypatch.setattr(one._server, "run", serve)
    one.run()
    assert handled == [True]
    assert closed == [one.state]
    assert signal.getsignal(number) == before


@pytest.mark.exhaustive
def test_a_signal_stops_the_jobs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == "stopped twice\n", ended.stderr
    assert ended.returncode == 0
