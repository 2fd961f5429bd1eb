"""One sequence being generated: its tokens, the window that the model sees, and why it finished."""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop_token", "stop", "length"]
"""Why a sequence finished: the model produced a stop token, a stop string was found, or max_new_tokens was reached."""


class TokenSequence:
    """A prompt and the tokens generated after it, with the window of recent tokens that the model sees.

    When the window outgrows the context, it restarts with its most recent half. That costs one prefill of half a
    context per half a context of tokens; sliding by one token would cost a prefill for each. The start of the window
    depends only on the length of this sequence, never on the rest of the batch.

    >>> sequence = TokenSequence([1, 2, 3, 4, 5], prompt=0, sample=0, context=4, vocabulary=10)
    >>> sequence.window, sequence.notices
    ([2, 3, 4, 5], ['prompt truncated to its last 4 of 5 tokens: the context of the model is 4 tokens'])
    >>> sequence.append(6)
    >>> sequence.window, sequence.generated_tokens
    ([5, 6], [6])

    Args:
        tokens: the prompt, at least one token.
        prompt: index of the prompt.
        sample: index of the sample of this prompt.
        context: context length of the model.
        vocabulary: number of tokens to sample from.
        stop_tokens: tokens that finish a sequence. Those in the prompt are exempt from the repetition penalty.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        *,
        prompt: int,
        sample: int,
        context: int,
        vocabulary: int,
        stop_tokens: Collection[int] = (),
    ) -> None:
        self.prompt, self.sample = prompt, sample
        self.tokens = [int(token) for token in tokens]
        self.finish_reason: FinishReason | None = None
        self.notices: list[str] = []
        self._context, self._prompt_length = context, len(self.tokens)
        self.window_start = max(0, self._prompt_length - context)  # position of the first token that the model sees
        self._seen = np.zeros(vocabulary, dtype=np.bool_)
        self._seen[[token for token in self.tokens if token < vocabulary and token not in stop_tokens]] = True
        if self.window_start:
            self.notices.append(
                f"prompt truncated to its last {context} of {self._prompt_length} tokens: "
                f"the context of the model is {context} tokens"
            )

    @property
    def window(self) -> list[int]:
        """The tokens that the model sees."""
        return self.tokens[self.window_start :]

    @property
    def prompt_tokens(self) -> list[int]:
        return self.tokens[: self._prompt_length]

    @property
    def generated_tokens(self) -> list[int]:
        return self.tokens[self._prompt_length :]

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self._prompt_length

    @property
    def seen(self) -> NDArray[np.intp]:
        """The distinct tokens of prompt and generated text, without stop tokens."""
        return np.flatnonzero(self._seen)

    @property
    def final_finish_reason(self) -> FinishReason:
        """The finish reason of a finished sequence."""
        assert self.finish_reason is not None, "the sequence is not finished"
        return self.finish_reason

    def append(self, token: int) -> None:
        """Append a generated token, and restart the window if it no longer fits the context."""
        self.tokens.append(token)
        self._seen[token] = True
        if len(self.tokens) - self.window_start > self._context:
            kept = max(1, self._context // 2)
            restarted_before = self.window_start > max(0, self._prompt_length - self._context)
            self.window_start = len(self.tokens) - kept
            if not restarted_before:
                self.notices.append(
                    f"the text exceeds the context of {self._context} tokens: "
                    f"each time the context is full, generation continues from the last {kept} tokens"
                )
