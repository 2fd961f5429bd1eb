"""Stop gracefully on Ctrl-C, SIGTERM or a closed terminal (SIGHUP): finish the step, save, then stop."""

import signal
import threading
from types import FrameType
from typing import Any, Self


class StopOnSignal:
    """Context manager that records the first signal in `requested`; a second one raises KeyboardInterrupt.

    >>> with StopOnSignal() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.requested
    <Signals.SIGTERM: 15>
    """

    SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread set handlers
            # Ignored signals stay ignored: a shell ignores SIGINT for background jobs, nohup ignores SIGHUP.
            handled = [number for number in self.SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._previous = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number)
