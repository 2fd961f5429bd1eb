"""A lab and a comparison on a Ray cluster of two nodes, one of which is killed."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from normscope.lab.running.time_estimates import measure_run_cost
from normscope.lab.running.trial import function_path
from tests.support import free_port

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks for processes in /proc"),
]
TRIES = 200.0  # seconds until a test gives up


def wait_until(done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TRIES
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Node:
    """A node of a Ray cluster, started by `ray start`."""

    def __init__(self, folder: Path, environment: dict[str, str], *options: str) -> None:
        folder.mkdir()
        command = [sys.executable, "-m", "tests.lab.ray_node", "start", *options, "--block", "--disable-usage-stats"]
        size = ["--num-cpus", "1", "--num-gpus", "0", "--object-store-memory", str(80 * 2**20)]
        ports = ["--node-ip-address", "127.0.0.1", "--min-worker-port", "0", "--max-worker-port", "0"]
        self.log = folder / "log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, *size, *ports, "--temp-dir", str(folder)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        wait_until(lambda: "Ray runtime started" in self.log.read_text() or self._process.poll() is not None)
        assert self._process.poll() is None, self.log.read_text()

    def processes(self) -> dict[int, str]:
        """The command of each living process of the node, by its number."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
                if int(session) == self._process.pid and state != "Z":
                    found[int(path.parent.name)] = (path.parent / "cmdline").read_bytes().decode()
        return found

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def kill(self) -> None:
        """End all processes of the node."""
        while self.processes():  # they may start others meanwhile
            self.signal(signal.SIGKILL)
        self._process.wait()

    def kill_at_work(self) -> None:
        """End all processes of the node while it runs a trial."""

        def is_at_work() -> bool:
            return any("ray::run_trial" in command for command in self.processes().values())

        while True:
            wait_until(is_at_work)
            self.signal(signal.SIGSTOP)
            if is_at_work():
                break
            self.signal(signal.SIGCONT)
        self.kill()

    def addresses(self) -> set[str]:
        """The addresses at which the processes of the node listen."""
        sockets = set()
        for process in self.processes():
            for handle in Path(f"/proc/{process}/fd").glob("*"):
                with contextlib.suppress(OSError):
                    sockets |= set(re.findall(r"socket:\[(\d+)\]", str(handle.readlink())))
        tables = (Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
        rows = [line.split() for table in tables for line in table.splitlines()]
        return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 as /proc/net/tcp writes it, and as tcp6 does."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[str, str], Node]]:
    """The environment of a cluster of two nodes, and its second node."""
    root, port = Path(__file__).parents[3], free_port()
    # The sockets of Ray are in its folder, and their names must be short.
    folder = Path("/tmp") / f"ray-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    places = [str(root / "src"), str(root)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
    environment.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)
    nodes = []
    try:
        ports = ["--port", str(port), "--ray-client-server-port", str(free_port())]
        nodes.append(Node(folder / "a", environment, "--head", *ports, "--include-dashboard", "false"))
        nodes[0].wait()
        nodes.append(Node(folder / "b", environment, "--address", f"127.0.0.1:{port}"))
        nodes[1].wait()
        assert nodes[0].addresses() | nodes[1].addresses() == LOOPBACK
        # The second variable keeps Ray from replacing 127.0.0.1.
        yield environment | {"RAY_ADDRESS": f"127.0.0.1:{port}", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}, nodes[1]
    finally:
        for node in nodes:
            node.kill()
        shutil.rmtree(folder)


def start(environment: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "normscope", *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def trials(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in folder.glob("trials/*.json")}


def metrics(folder: Path) -> dict[str, dict[str, Any]]:
    """The metrics of each trial that does not measure times."""
    found = {name: trial["metrics"] for name, trial in trials(folder).items() if not is_timing(trial)}
    return {name: {key: value for key, value in one.items() if "seconds" not in key} for name, one in found.items()}


def is_timing(trial: dict[str, Any]) -> bool:
    return bool(trial["measure"] == function_path(measure_run_cost))


def run_and_kill(environment: dict[str, str], node: Node, folder: Path, *arguments: str) -> tuple[str, str]:
    """Run a command on the cluster, kill the node in the middle, and return what the command wrote."""
    run = start(environment, *arguments, "--ray", "--out", str(folder))
    try:
        wait_until(lambda: metrics(folder) or run.poll() is not None)
        node.kill_at_work()
        before = len(metrics(folder))
        out, errors = run.communicate(timeout=TRIES)
    finally:
        run.kill()
    assert run.returncode == 0, errors
    assert 0 < before < len(metrics(folder))
    assert len(re.findall(r"lost a machine of the cluster: 127\.0\.0\.1 \(node \w{12}\)", errors)) == 1, errors
    assert "Traceback" not in errors
    (last,) = re.findall(r"^(\d+) of (\d+) trials$", errors, re.MULTILINE)  # without "... left"
    assert last[0] == last[1]
    assert int(last[1]) == len(metrics(folder))
    return out, errors


def test_lab_loses_a_node_and_finds_the_same(cluster: tuple[dict[str, str], Node], tmp_path: Path) -> None:
    environment, node = cluster
    command = ["lab", "run", "tails-saturate", "--seeds", "2"]
    out, _ = run_and_kill(environment, node, tmp_path / "ray", *command)
    local = start(environment, *command, "--out", str(tmp_path / "local"))
    expected, errors = local.communicate(timeout=TRIES)
    assert local.returncode == 0, errors
    assert metrics(tmp_path / "ray") == metrics(tmp_path / "local")
    assert len(metrics(tmp_path / "ray")) == 32
    assert expected.replace(str(tmp_path / "local"), "") in out.replace(str(tmp_path / "ray"), "")  # Ray adds a line


def test_comparison_loses_a_node_and_finds_the_same(cluster: tuple[dict[str, str], Node], tmp_path: Path) -> None:
    environment, node = cluster
    size = ["--depth", "1", "--width", "16", "--heads", "2", "--context", "32"]
    command = ["compare", "--norm", "rms,layer", *size, "--lr", "0.01", "--seeds", "3", "--minutes", "0.2"]
    out, _ = run_and_kill(environment, node, tmp_path / "ray", *command)
    for name, trial in trials(tmp_path / "ray").items():
        if is_timing(trial):  # so that it chooses the same number of steps
            (tmp_path / "local" / "trials").mkdir(parents=True, exist_ok=True)
            shutil.copy(tmp_path / "ray" / "trials" / name, tmp_path / "local" / "trials")
    # The cluster has two cores, and the local command has to plan as many workers.
    local = start(environment, *command, "--workers", "2", "--out", str(tmp_path / "local"))
    expected, errors = local.communicate(timeout=TRIES)
    assert local.returncode == 0, errors
    assert metrics(tmp_path / "ray") == metrics(tmp_path / "local")
    assert len(metrics(tmp_path / "ray")) == 6
    assert losses(out) == losses(expected)


def losses(table: str) -> list[list[str]]:
    """Variant and loss of each row."""
    return [line.split()[:3] for line in table.splitlines() if re.match(r"\d  ", line)]
