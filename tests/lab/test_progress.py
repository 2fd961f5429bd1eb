"""How a lab's run goes, told where there is no terminal: what was already done, and what an interruption leaves."""

import signal
from collections.abc import Callable

import pytest

from normscope.lab.progress import lab_progress
from normscope.lab.running.scheduler import StudyObserver
from normscope.lab.running.trial import LabTrial, TrialResult


def tell(watch: StudyObserver, *cached: bool) -> None:
    """Trials that are done one after the other, kept from before or not."""
    for seed, one in enumerate(cached):
        watch.trial_done("study", LabTrial("module:measure", {}, seed), TrialResult({}, 1.0, ""), one)


def test_what_is_there_already_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with lab_progress({"study": [50.0] * 20}) as watch:
        tell(watch, True, True, True, False, True, False)
    assert capsys.readouterr().err.count("already done") == 1
    with lab_progress({"study": [50.0] * 20}) as watch:
        tell(watch, True, True, True, False)
    assert capsys.readouterr().err.splitlines()[0] == "3 of 20 trials already done"
    with lab_progress({"study": [50.0] * 20}) as watch:
        tell(watch, False, True, False)
    assert "already done" not in capsys.readouterr().err


def interrupted() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", [interrupted, lambda: signal.raise_signal(signal.SIGTERM)])
def test_an_interruption_says_what_is_kept(end: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def begun_and_ended() -> None:
        with lab_progress({"study": [50.0] * 20}) as watch:
            tell(watch, True, False)
            end()

    with pytest.raises(KeyboardInterrupt):
        begun_and_ended()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "interrupted; 2 of 20 trials done; run the same command to continue"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_that_ends_by_itself_says_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with lab_progress({"study": [50.0] * 20}) as watch:
        tell(watch, False)
    assert "interrupted" not in capsys.readouterr().err
