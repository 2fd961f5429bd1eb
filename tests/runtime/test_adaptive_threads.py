"""torch's number of threads follows the chooser and is restored; notices about the load."""

from collections.abc import Iterator

import pytest
import torch

from normscope.errors import ConfigError
from normscope.runtime.adaptive_threads import AdaptiveThreads, TorchThreads
from normscope.runtime.machine_load import LoadMeter, MachineLoad
from normscope.runtime.openmp import ShortSpin


class BusyMeter(LoadMeter):
    """A machine on which others use so many cores."""

    def __init__(self, other_cores: float | None, cores: int = 2) -> None:
        super().__init__(lambda: None)
        self.now, self.cores = other_cores, cores

    def load(self, every: float) -> MachineLoad:
        return MachineLoad(self.cores, self.now)


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NORMSCOPE_THREADS", "adaptive")
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def take_steps(threads: AdaptiveThreads, count: int, alone: float = 0.04, together: float = 0.1) -> None:
    for _ in range(count):
        threads.step(alone if threads.threads == 1 else together)


def test_torch_uses_fewer_threads_while_busy_and_all_afterwards() -> None:
    meter = BusyMeter(0.0)
    with TorchThreads(meter=meter) as threads:
        take_steps(threads, 100)
        assert (torch.get_num_threads(), threads.notice()) == (2, None)
        meter.now = 1.0
        take_steps(threads, 100)
        assert (torch.get_num_threads(), threads.chosen) == (1, 1)
        assert threads.notice() == (
            "the machine is busy (other processes use 1.0 of 2 cores): using 1 of 2 threads for now"
        )
        meter.now = 0.0
        take_steps(threads, 100, together=0.02)
        assert torch.get_num_threads() == 2
        meter.now = 1.0
        take_steps(threads, 100)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    assert not ShortSpin.is_active()


def test_an_error_restores_the_number_of_threads() -> None:
    def interrupted() -> None:
        with TorchThreads(meter=BusyMeter(2.0)):
            assert torch.get_num_threads() == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("how", ["setting", "argument"])
def test_fixed_threads_do_not_change(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "setting":
        monkeypatch.setenv("NORMSCOPE_THREADS", "fixed")
    with TorchThreads(adapt=how == "setting", meter=BusyMeter(2.0)) as threads:
        take_steps(threads, 100)
        assert (torch.get_num_threads(), threads.chosen, threads.notice()) == (2, 2, None)
        assert not ShortSpin.is_active()


def test_an_unknown_thread_mode_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMSCOPE_THREADS", "many")
    with pytest.raises(ConfigError, match=r"NORMSCOPE_THREADS='many'.*\nfix: choose adaptive or fixed"):
        TorchThreads()


def test_threads_that_keep_the_bits_are_kept_and_reported() -> None:
    with TorchThreads(meter=BusyMeter(1.0), is_allowed=lambda threads: False) as threads:
        take_steps(threads, 50)
        assert torch.get_num_threads() == 2
        assert "fewer would change the last bits of results" in (threads.notice() or "")


def test_slow_steps_suffice_if_the_load_is_unknown() -> None:
    with TorchThreads(meter=BusyMeter(None)) as threads:
        take_steps(threads, 50, together=0.02)
        take_steps(threads, 50, together=0.2)
        assert threads.chosen == 1
        assert threads.notice() == "the machine is busy: using 1 of 2 threads for now"


def test_a_busy_machine_is_reported_even_if_all_threads_are_kept() -> None:
    meter = BusyMeter(0.0)
    with TorchThreads(meter=meter) as threads:
        take_steps(threads, 20, together=0.03)
        meter.now = 1.0
        take_steps(threads, 2, together=0.03)
        assert threads.is_busy
        assert threads.notice() is None  # it may be over in a moment
        take_steps(threads, 200, together=0.03)
        assert (threads.chosen, threads.is_busy) == (2, True)
        assert "would be even slower with fewer threads" in (threads.notice() or "")
        meter.now = 0.0
        assert (threads.is_busy, threads.notice()) == (False, None)


def test_threads_spin_less_only_when_oversubscribed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(ShortSpin, "set", lambda waits, on: asked.append(on))
    meter = BusyMeter(0.0)
    with TorchThreads(meter=meter) as threads:
        take_steps(threads, 20, together=0.03)
        assert not any(asked)
        meter.now = 1.0
        take_steps(threads, 1, together=0.03)
        assert asked[-1]
        take_steps(threads, 100)
        assert (threads.chosen, asked[-1]) == (1, False)  # one thread waits for nobody


def test_more_threads_than_cores_is_not_reported_as_a_busy_machine() -> None:
    torch.set_num_threads(4)
    with TorchThreads(meter=BusyMeter(0.0)) as threads:
        take_steps(threads, 50)
        assert threads.notice() == "4 threads share 2 cores: using 2 of 4 threads for now"
