"""ShortSpin: the idle team exists while it is on, and ends afterwards."""

import threading
from collections.abc import Iterator

import pytest

from normscope.runtime import openmp as waiting
from normscope.runtime.openmp import ShortSpin

needs_libgomp = pytest.mark.skipif(waiting._functions() is None, reason="torch has another OpenMP library here")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    yield
    assert not ShortSpin.is_active()
    for holder in holders():
        holder.join(timeout=60)


def holders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == waiting.THREAD_NAME]


@needs_libgomp
def test_the_idle_team_exists_while_any_instance_is_on() -> None:
    one, other = ShortSpin(), ShortSpin()
    one.set(True)
    one.set(True)
    other.set(True)
    (holder,) = holders()
    one.set(False)
    assert ShortSpin.is_active()
    other.set(False)
    other.set(False)
    holder.join(timeout=60)
    assert not holder.is_alive()
    one.set(True)  # and again
    assert ShortSpin.is_active()
    one.set(False)


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "10000")])
def test_the_users_setting_wins(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    waits = ShortSpin()
    waits.set(True)
    assert not ShortSpin.is_active()
    assert not holders()
    waits.set(False)


def test_other_openmp_libraries_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_functions", lambda: None)
    waits = ShortSpin()
    waits.set(True)
    assert not ShortSpin.is_active()
    waits.set(False)
