"""Ctrl-C, SIGTERM and a closed terminal (SIGHUP): finish the step, save the run, and stop."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Stopping:
    """Inside this context the first signal is noted; a second one interrupts at once.

    >>> with Stopping() as stopping:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stopping.requested
    <Signals.SIGTERM: 15>
    """

    SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Stopping":
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread set them
            # What is ignored stays so: a shell starts a run in the background like that, and Ctrl-C is not for it.
            heard = [number for number in self.SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number)
