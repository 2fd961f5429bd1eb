"""Conversations as tokens, with a mark for each token that the assistant writes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from normscope.data.conversations.messages import Message, check_messages
from normscope.data.conversations.template import ChatTemplate
from normscope.data.tokenizers.base import Tokenizer, Tokens
from normscope.errors import ConfigError


def encode_conversation(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Message]
) -> tuple[Tokens, NDArray[np.bool_]]:
    """Return the tokens of a conversation, and which of them the assistant writes, the end of its turns included.

    A token belongs to the assistant if any character of it does.
    """
    messages = check_messages(messages)
    _refuse_special_tokens(tokenizer, messages)
    text, replies = template.text_and_replies(messages)
    tokens, spans = tokenizer.encode_with_spans(text)
    written = np.zeros(len(tokens), dtype=np.bool_)
    for start, stop in replies:
        written |= (spans[:, 0] < stop) & (spans[:, 1] > start)
    return tokens, written


def encode_prompt(template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Return the tokens before the next reply of the assistant."""
    messages = check_messages(messages)
    _refuse_special_tokens(tokenizer, messages)
    tokens: list[int] = tokenizer.encode_with_spans(template.prompt(messages))[0].tolist()
    return tokens


def _refuse_special_tokens(tokenizer: Tokenizer, messages: Sequence[Message]) -> None:
    """Raise if a message contains a special token, which could end its turn and start one of another role."""
    names = tokenizer.special_tokens
    for number, message in enumerate(messages, start=1):
        found = next((name for name in names if name in message["content"]), None)
        if found is not None:
            raise ConfigError(
                f"message {number} contains the special token {found}, which would be taken for the end of a turn\n"
                f"fix: remove it from the text"
            )
