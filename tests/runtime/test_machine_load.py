"""The load of the machine, from simulated counters and files, and from this machine."""

import os
from pathlib import Path

import pytest

from normscope.runtime import machine_load as load
from normscope.runtime.machine_load import (
    LoadMeter,
    MachineLoad,
    busy_seconds,
    measure_load,
    running_threads,
    usable_cores,
)


class Counters:
    """What a meter reads: the clock, the busy cores, and this process' own part."""

    def __init__(self) -> None:
        self.clock, self.busy, self.own, self.running = 100.0, 5000.0, 7.0, 1

    def meter(self) -> LoadMeter:
        return LoadMeter(lambda: self.busy, lambda: self.own, lambda: self.running, lambda: self.clock)

    def advance(self, seconds: float, busy: float, own: float) -> None:
        self.clock, self.busy, self.own = self.clock + seconds, self.busy + busy, self.own + own


def test_other_cpu_time_is_total_minus_own() -> None:
    counters = Counters()
    meter = counters.meter()
    counters.advance(2.0, busy=4.0, own=1.0)
    assert meter.read().other_cores == pytest.approx(1.5)
    counters.advance(2.0, busy=1.9, own=2.0)  # counted in ticks, so it may be a little less than ours
    assert meter.read().other_cores == 0.0


def test_the_load_is_read_at_most_once_per_interval() -> None:
    counters = Counters()
    meter = counters.meter()
    counters.advance(0.4, busy=0.4, own=0.0)
    assert meter.load(every=0.5).other_cores is None  # too early to tell
    counters.advance(0.2, busy=0.2, own=0.0)
    assert meter.load(every=0.5).other_cores == pytest.approx(1.0)
    counters.advance(0.2, busy=0.0, own=0.0)
    assert meter.load(every=0.5).other_cores == pytest.approx(1.0)  # the last reading
    counters.advance(60.0, busy=120.0, own=0.0)
    assert meter.load(every=0.5).other_cores is None  # a minute without a step says nothing of now
    counters.advance(0.6, busy=0.3, own=0.0)
    assert meter.load(every=0.5).other_cores == pytest.approx(0.5)


def test_the_load_is_unknown_without_system_counters() -> None:
    meter = LoadMeter(lambda: None)
    assert meter.read().other_cores is None
    assert MachineLoad(4, None).threads_for(4) is None
    assert not MachineLoad(4, None).is_busy
    assert (MachineLoad(4, None).free_cores, str(MachineLoad(4, None)), str(MachineLoad(4, None, average=1.5))) == (
        None,
        "unknown",
        "load average 1.5",
    )


def test_runnable_threads_exclude_the_calling_thread() -> None:
    counters = Counters()
    meter = counters.meter()
    for running in (3, 4, 5):
        counters.running = running
        counters.advance(0.1, busy=0.2, own=0.1)
        meter.load(every=0.5)
        meter.load(every=0.5)  # at the same moment, which is one moment
    counters.running = 8
    counters.advance(0.3, busy=0.6, own=0.3)
    assert meter.load(every=0.5).waiting == pytest.approx((2 + 3 + 4 + 7) / 4)


@pytest.mark.parametrize(
    ("waiting", "threads"),
    [(None, 3), (1.0, 3), (2.8, 3), (3.0, 4), (9.0, 4)],
)
def test_all_threads_are_suggested_if_all_cores_are_contended(waiting: float | None, threads: int) -> None:
    assert MachineLoad(4, 1.2, waiting).threads_for(4) == threads
    assert MachineLoad(4, 1.2, waiting).threads_for(2) == 2


@pytest.mark.parametrize(("other_cores", "free_cores"), [(0.0, 4), (0.2, 4), (0.6, 3), (1.0, 3), (2.9, 1), (4.0, 1)])
def test_free_cores_round_with_slack(other_cores: float, free_cores: int) -> None:
    assert MachineLoad(4, other_cores).free_cores == free_cores


def test_busy_time_counts_only_usable_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(load, "_STAT", stat)
    monkeypatch.setattr(load, "_TICKS", 100.0)
    monkeypatch.setattr(load, "_bound_to", lambda: {1, 2})
    #                user nice system idle iowait irq softirq steal guest guest_nice
    columns = "{} 100 50 9000 800 10 20 30 7 7\n"
    lines = ["cpu " + columns.format(999999)]
    lines += [f"cpu{i} {columns.format(1000 * i)}" for i in range(4)]
    stat.write_text("".join(lines) + "intr 1 2 3\n")
    assert busy_seconds() == pytest.approx((1000 + 2000 + 2 * (100 + 50 + 10 + 20 + 30)) / 100)
    stat.write_text("cpu  0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\n")  # a sandbox that hides it
    assert busy_seconds() is None
    stat.unlink()
    assert busy_seconds() is None


@pytest.mark.parametrize(("text", "running"), [("0.50 0.40 0.30 3/170 4616\n", 3), ("0.5 0.4 0.3\n", None), ("", None)])
def test_running_threads_are_counted(
    text: str, running: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loadavg").write_text(text)
    monkeypatch.setattr(load, "_LOADAVG", tmp_path / "loadavg")
    assert running_threads() == running


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 8), ("150000 100000", 2), ("900000 100000", 8), ("", 8)])
def test_a_cgroup_quota_limits_the_cores(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(load, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(load, "_bound_to", lambda: set(range(8)))
    assert usable_cores() == cores


def test_this_machine_has_a_load() -> None:
    found = measure_load(0.01)
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert (found.other_cores is None) == (busy_seconds() is None)
    assert (found.waiting is None) == (running_threads() is None)
    assert str(found)
