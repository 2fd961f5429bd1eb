"""Workers for tests: they run trials in this process and record them."""

from concurrent.futures import Future
from pathlib import Path

from normscope.lab.running.trial import LabTrial, TrialResult, run_trial


class Here:
    """Runs every trial when it is started.

    Args:
        count: how many are started at once.
        texts: where texts are found.
        stop_after: how many trials are run before the user presses Ctrl-C.
    """

    def __init__(self, count: int = 2, texts: Path | None = None, stop_after: int | None = None) -> None:
        self.count, self.texts, self.stop_after = count, texts, stop_after
        self.started: list[LabTrial] = []

    def start(self, trial: LabTrial) -> "Future[TrialResult]":
        if self.stop_after is not None and len(self.started) >= self.stop_after:
            raise KeyboardInterrupt
        self.started.append(trial)
        future: Future[TrialResult] = Future()
        try:
            future.set_result(run_trial(trial, self.texts))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


class Silent:
    """An observer that records events."""

    def __init__(self) -> None:
        self.trials: list[tuple[str, bool]] = []
        self.studies: dict[str, Exception | None] = {}

    def trial_done(self, study: str, trial: LabTrial, done: TrialResult, cached: bool) -> None:
        self.trials.append((study, cached))

    def study_done(self, study: str, error: Exception | None) -> None:
        self.studies[study] = error
