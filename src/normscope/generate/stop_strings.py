"""Stop strings: the text ends before the first of them, and no part of one is ever shown."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from normscope.checks import short_repr
from normscope.errors import ConfigError, DtypeError


class StopFinder:
    """Text in, piece by piece; text out as soon as it is clear that it does not begin a stop string.

    The stop string that is complete first ends the text; of several that end at the same place the longest does. How
    the text was cut into pieces makes no difference.

    >>> finder = StopFinder(("END",))
    >>> finder.push("the E"), finder.push("N"), finder.push("emy's EN"), finder.push("D of it")
    ('the ', '', "ENemy's ", '')
    >>> finder.found
    True
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Take the next piece; returns what can be shown. After a stop string nothing can."""
        if self.found:
            return ""
        self._held += text
        ends = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            self.found = True
            shown, self._held = self._held[: min(ends)[1]], ""
            return shown
        clear = len(self._held) - self._beginning()
        shown, self._held = self._held[:clear], self._held[clear:]
        return shown

    def finish(self) -> str:
        """What was held back, at the end of the text: it was no stop string after all."""
        shown, self._held = self._held, ""
        return shown

    def _beginning(self) -> int:
        """How many characters at the end of what is held may be the beginning of a stop string."""
        longest = min(len(self._held), max(map(len, self._stops), default=1) - 1)
        for count in range(longest, 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stops):
                return count
        return 0


def check_stops(stops: object) -> tuple[str, ...]:
    """Refuse what are not stop strings; a single one may be given by itself."""
    if not isinstance(stops, Iterable) or isinstance(stops, Tensor):  # a tensor is iterable, but not each of them
        raise DtypeError(f"stop strings are texts, but got {short_repr(stops)}\nfix: stop=('\\n\\n',), for instance")
    known = (stops,) if isinstance(stops, str) else tuple(stops)
    for stop in known:
        if not isinstance(stop, str):
            raise DtypeError(f"a stop string is a str, but got {stop!r:.80}\nfix: stop=('\\n\\n',), for instance")
        if not stop:
            raise ConfigError("a stop string is empty, so every text would end at once\nfix: leave it out")
    return known
