"""The first signal requests a stop, the second interrupts, and handlers are restored."""

import signal

import pytest

from normscope.training.stop_signals import StopOnSignal


@pytest.mark.parametrize("number", StopOnSignal.SIGNALS)
def test_the_first_signal_is_recorded_and_the_second_interrupts(number: signal.Signals) -> None:
    before = {each: signal.getsignal(each) for each in StopOnSignal.SIGNALS}
    with StopOnSignal() as stopping:
        assert stopping.requested is None
        signal.raise_signal(number)
        assert str(stopping.requested) == str(number)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert {each: signal.getsignal(each) for each in StopOnSignal.SIGNALS} == before
