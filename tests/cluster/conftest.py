"""Jobs of a test, which end with it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.jobs import Start, kill


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a job that writes into the file "log" of its folder."""
    jobs: list[subprocess.Popen[Any]] = []

    def started(command: list[str], folder: Path, variables: dict[str, str]) -> "subprocess.Popen[Any]":
        with (folder / "log").open("a") as log:
            jobs.append(
                subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=log, start_new_session=True)
            )
        return jobs[-1]

    yield started
    for job in jobs:
        kill(job)
