"""Stop strings: the text ends before the first match, and no part of a stop string is ever emitted."""

from collections.abc import Sequence


class StopStringFilter:
    """Filter streamed text: emit what cannot be part of a stop string, and hold back the rest.

    The stop string that completes first wins; among those that end at the same position, the longest. The result does
    not depend on how the text is split into pieces.

    >>> stop_filter = StopStringFilter(("END",))
    >>> stop_filter.push("the E"), stop_filter.push("N"), stop_filter.push("emy's EN"), stop_filter.push("D of it")
    ('the ', '', "ENemy's ", '')
    >>> stop_filter.found
    True
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Add the next piece and return the text that is safe to emit; empty after a stop string."""
        if self.found:
            return ""
        self._held += text
        matches = [(start + len(stop), start) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if matches:
            self.found = True
            emitted, self._held = self._held[: min(matches)[1]], ""
            return emitted
        safe = len(self._held) - self._partial_match_length()
        emitted, self._held = self._held[:safe], self._held[safe:]
        return emitted

    def finish(self) -> str:
        """Return the text held back at the end of the stream: it did not complete a stop string."""
        emitted, self._held = self._held, ""
        return emitted

    def _partial_match_length(self) -> int:
        """Length of the longest suffix of the held text that is a prefix of a stop string."""
        longest = min(len(self._held), max(map(len, self._stops), default=1) - 1)
        for count in range(longest, 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stops):
                return count
        return 0
