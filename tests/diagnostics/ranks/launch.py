"""Start processes that are ranks of one group, run cases in each, and read the records that they saved."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.multiprocessing.spawn import start_processes

from normscope.diagnostics.collect.session import XraySession
from normscope.diagnostics.findings import find
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.record_json import load_record, save_record
from tests.training.forked import ensure_warm_server


@dataclass(frozen=True)
class RankCase:
    """What each rank runs.

    Args:
        run: gets the rank, and returns the x-ray that it took, if it took one. It may check more by asserts.
        finding: the finding that every rank with an x-ray has; "" for a healthy case.
        severity: its severity.
    """

    run: Callable[[int], Xray | None]
    finding: str = ""
    severity: str = "warning"

    @property
    def name(self) -> str:
        return self.run.__name__.replace("_", "-")


def launch(
    cases: Sequence[RankCase], ranks: int, folder: Path, script: str | None = None
) -> dict[str, list[XrayRecord | None]]:
    """Run the cases one after the other in one group of processes. Return the records of each case, by rank.

    Args:
        cases: the cases.
        ranks: number of processes.
        folder: an empty folder, for the records.
        script: run before the cases as under torchrun, it makes the group; its output goes to script.RANK.txt.
            Without one, the ranks meet in a file.
    """
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}
    environment |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    arguments = (list(cases), ranks, str(folder), script, environment)
    ensure_warm_server()
    start_processes(_work, args=arguments, nprocs=ranks, start_method="forkserver")
    paths = {case.name: [folder / f"{case.name}.{rank}.json" for rank in range(ranks)] for case in cases}
    return {name: [load_record(path) if path.exists() else None for path in own] for name, own in paths.items()}


def _work(
    rank: int, cases: Sequence[RankCase], ranks: int, folder: str, script: str | None, environment: dict[str, str]
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"  # stay on this machine
    torch.set_num_threads(1)
    XraySession.report_failure = _fail  # type: ignore[method-assign, assignment]
    try:
        if script is None:
            # A rank that waits for a sum that never comes fails instead of hanging.
            meeting, patience = f"file://{folder}/meeting-point", timedelta(seconds=60)
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=patience)
        else:
            os.environ.update(environment, RANK=str(rank))
            with Path(folder, f"script.{rank}.txt").open("w") as output, redirect_stdout(output):
                exec(compile(script, "script", "exec"), {"__name__": "__main__"})
        for case in cases:
            torch.manual_seed(0)
            xray = case.run(rank)
            if xray is not None:
                save_record(xray.record, Path(folder) / f"{case.name}.{rank}.json")
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # at once: to take Gloo's threads down can wait for ever for Python's lock


def _fail(_: XraySession, where: str, error: Exception) -> None:
    """As in `tests/diagnostics/conftest.py`: an error of the x-ray itself fails the test."""
    raise error


def mismatches(case: RankCase, record: XrayRecord) -> list[str]:
    """What is wrong with the findings of one rank; empty if nothing is."""
    found = find(record)
    if case.finding and not any((f.name, f.severity) == (case.finding, case.severity) for f in found):
        return [f"{case.name}: no {case.severity} {case.finding}, only {[(f.name, f.severity) for f in found]}"]
    if not case.finding and record.ranks is not None and record.ranks.differences:
        return [f"{case.name}: ranks should agree: {record.ranks.differences}"]
    return [
        f"{case.name}: unexpected: {finding.severity} {finding.name}: {finding.title}"
        for finding in found
        if finding.severity != "note" and finding.name != case.finding
    ]
