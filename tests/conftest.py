"""Global test setup: one thread per worker, so that workers don't compete for cores, no waiting for disks, a seed."""

import builtins
import gc
import os
import signal
import sys
from collections.abc import Generator

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings

from tests.browser import browser as browser

os.environ["NORMSCOPE_THREADS"] = "fixed"  # so that subprocesses print no notices about machine load

# Shells start background jobs with SIGINT ignored, and nohup ignores SIGHUP. Children inherit this, and tests that
# send them signals would wait forever.
for _number in {"SIGINT", "SIGHUP"} & set(dir(signal)):
    if signal.getsignal(getattr(signal, _number)) is signal.SIG_IGN:
        _handler = signal.default_int_handler if _number == "SIGINT" else signal.SIG_DFL
        signal.signal(getattr(signal, _number), _handler)


def _no_wait(descriptor: int) -> None:
    """An fsync that does not wait: it only matters after a power cut. Processes that tests start and kill do wait."""
    os.fstat(descriptor)  # a closed file is still an error


os.fsync = _no_wait  # type: ignore[assignment]

# The same examples in every run, so that failures are reproducible; no deadline, so that slow machines pass.
settings.register_profile("default suite", max_examples=50, deadline=None, derandomize=True, database=None)
settings.register_profile("exhaustive", settings.get_profile("default suite"), max_examples=200)


def pytest_configure(config: pytest.Config) -> None:
    quick = "not exhaustive" in config.getoption("markexpr")
    settings.load_profile("default suite" if quick else "exhaustive")
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        gc.disable()  # until all tests are collected
        import torch  # takes seconds, and the process that only distributes the tests does not need it

        torch.set_num_threads(int(os.environ.get("NORMSCOPE_TEST_THREADS", "1")))
    if hasattr(config, "workerinput") and sys.platform != "win32":
        from tests.compile_once import share_among_workers

        share_among_workers(config.workerinput["testrunuid"])


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Don't search test files for doctests (this hook is called for files in this folder only): there are none."""
    collectors = yield
    return [collector for collector in collectors if not isinstance(collector, DoctestModule)]


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and tests stay: never search them for garbage
    gc.enable()


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.default_generator.manual_seed(0)  # torch.manual_seed formats three stack traces for devices that aren't there
    vars(builtins).pop("_", None)  # a doctest leaves its last value there, and tyro hashes all builtins
