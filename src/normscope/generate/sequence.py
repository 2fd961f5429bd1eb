"""One text in the making: its tokens, the part of them that the model sees, and why it ended."""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

StoppedBy = Literal["end", "stop", "length"]
"""Why a text ended: by the model's own end, by a stop string, or because it is as long as was asked for."""


class Row:
    """A text that grows token by token, and the window of its newest tokens that the model sees.

    When the window has outgrown the context it begins anew with the newest half of it, and grows again. That costs one
    pass over half a context, once in half a context of tokens; to slide by a single token would cost a pass for each.
    Where the window begins follows from the row's own length alone, whatever rows are written beside it.

    >>> row = Row([1, 2, 3, 4, 5], prompt=0, sample=0, context=4, vocabulary=10)
    >>> row.window, row.notices
    ([2, 3, 4, 5], ['the prompt has 5 tokens, but the model sees 4: its newest 4 are used'])
    >>> row.add(6)
    >>> row.window, row.written
    ([5, 6], [6])

    Args:
        tokens: the prompt, a token at least.
        prompt, sample: which prompt of those that were given, and which of its samples.
        context: how many tokens the model sees at most.
        vocabulary: how many tokens there are to choose from.
        ends: tokens that end a text; also where a prompt has them, they are no part of what is said in it.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        *,
        prompt: int,
        sample: int,
        context: int,
        vocabulary: int,
        ends: Collection[int] = (),
    ) -> None:
        self.prompt, self.sample = prompt, sample
        self.tokens = [int(token) for token in tokens]
        self.stopped_by: StoppedBy | None = None
        self.notices: list[str] = []
        self._context, self._given = context, len(self.tokens)
        self._begin = max(0, self._given - context)
        self._seen = np.zeros(vocabulary, dtype=np.bool_)
        self._seen[[token for token in self.tokens if token < vocabulary and token not in ends]] = True
        if self._begin:
            self.notices.append(
                f"the prompt has {self._given} tokens, but the model sees {context}: its newest {context} are used"
            )

    @property
    def begin(self) -> int:
        """The place in the text at which the window begins."""
        return self._begin

    @property
    def window(self) -> list[int]:
        """The tokens that the model sees."""
        return self.tokens[self._begin :]

    @property
    def prompted(self) -> list[int]:
        """The tokens of the prompt."""
        return self.tokens[: self._given]

    @property
    def written(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens[self._given :]

    @property
    def count(self) -> int:
        """How many tokens came after the prompt."""
        return len(self.tokens) - self._given

    @property
    def seen(self) -> NDArray[np.intp]:
        """The tokens that are in the text, prompt included, each once; no ends."""
        return np.flatnonzero(self._seen)

    @property
    def ending(self) -> StoppedBy:
        """Why the text ended; it has."""
        assert self.stopped_by is not None, "the text is still in the making"
        return self.stopped_by

    def add(self, token: int) -> None:
        self.tokens.append(token)
        self._seen[token] = True
        if len(self.tokens) - self._begin > self._context:
            kept = max(1, self._context // 2)
            slid_before = self._begin > max(0, self._given - self._context)
            self._begin = len(self.tokens) - kept
            if not slid_before:
                self.notices.append(
                    f"the text is longer than the model's context of {self._context} tokens: whenever that is full, "
                    f"the model goes on from the newest {kept}"
                )
