"""How stories go. One file a plot; each is a handful of rules, in the notation of `normscope.data.stories.template`.

To add a sentence, write it where it belongs in the order of frequency. To add a plot, write a file with its rules,
name it here, and add a line to <story>. The tests tell whether a new sentence could be read in two ways.
"""

from collections.abc import Mapping, Sequence

from normscope.data.stories.plots import baking, common, friend, gift, lost, race, rescue, seed, storm
from normscope.errors import ConfigError

Rules = Mapping[str, Sequence[str]]

STORY: Rules = {
    "story": [
        *("<opening>\n<lost and found>", "<opening>\n<new friend>", "<opening>\n<storm>", "<opening>\n<gift>"),
        *("<opening>\n<race>", "<opening>\n<baking>", "<opening>\n<rescue>", "<opening>\n<seed>"),
    ],
}


def together(*books: Rules) -> Rules:
    """All rules in one, none of which may hide another of the same name."""
    rules: dict[str, Sequence[str]] = {}
    for book in books:
        twice = sorted(rules.keys() & book.keys())
        if twice:
            raise ConfigError(f"there are two rules <{twice[0]}>\nfix: give one of them another name")
        rules |= book
    return rules


RULES = together(
    STORY,
    common.RULES,
    *(plot.RULES for plot in (lost, friend, storm, gift, race, baking, rescue, seed)),
)
