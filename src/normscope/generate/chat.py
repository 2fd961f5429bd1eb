"""A conversation with a model, as data. The user interface is in `normscope.cli.chat`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normscope.data.conversations.encode import encode_prompt
from normscope.data.conversations.messages import ASSISTANT
from normscope.data.conversations.messages import Message as Turn
from normscope.data.conversations.template import ChatTemplate
from normscope.data.tokenizers import Tokenizer
from normscope.errors import ConfigError
from normscope.generate.config import GenerationConfig, make_config
from normscope.generate.sequence import FinishReason
from normscope.generate.text import TextGeneration, check_tokenizer_matches
from normscope.models.gpt import GPT


@dataclass(frozen=True)
class Message:
    """A message of the user and the reply of the model.

    Args:
        prompt: text of the user.
        reply: text of the model, as far as it was streamed.
        tokens: prompt and reply as the model sees them, without a stop token.
        finish_reason: why the reply finished; None if it was interrupted.
        notices: messages for the user, such as a truncated prompt.
    """

    prompt: str
    reply: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None
    notices: tuple[str, ...]


class Conversation:
    """A text that user and model write in turns. The model continues the whole text, as far as it fits the context.

    With a chat template, each message is a turn of the user, and the model answers with a turn of the assistant.

    >>> from normscope.data.tokenizers import CharacterTokenizer
    >>> from normscope.models.presets import llama
    >>> tokenizer = CharacterTokenizer.of(["hello world"])
    >>> model = GPT(llama(vocab_size=tokenizer.vocab_size, context=32, depth=2, width=64, heads=4))
    >>> conversation = Conversation(model, tokenizer, max_new_tokens=4)
    >>> reply = "".join(conversation.send("hello "))
    >>> conversation.text == "hello " + reply
    True
    >>> conversation.undo().prompt, conversation.text
    ('hello ', '')

    Args:
        model: a GPT, in train or eval mode; the mode is left unchanged.
        tokenizer: the tokenizer that the model was trained with.
        config: generation settings; `config` may be replaced between messages.
        template: chat template of the model; None to continue the text as it is.
        settings: fields of `GenerationConfig` to replace, for instance temperature=0.8.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        config: GenerationConfig | None = None,
        *,
        template: ChatTemplate | None = None,
        **settings: Any,
    ) -> None:
        check_tokenizer_matches(model, tokenizer)
        self.model, self.tokenizer = model, tokenizer
        self.config = make_config(config, settings)
        self.messages: list[Message] = []
        self.template = template
        self._stop_tokens, self._stop_strings = ((), ()) if template is None else _ends_of_turn(template, tokenizer)

    @property
    def text(self) -> str:
        """The whole conversation."""
        return "".join(message.prompt + message.reply for message in self.messages)

    def send(self, text: str) -> Iterator[str]:
        """Send a message and stream the reply.

        The message is recorded when the reply finishes. If the iterator is closed or interrupted, the reply is recorded
        as far as it was streamed. Invalid text is refused immediately.
        """
        config = replace(self.config, samples=1, stop=(*self.config.stop, *self._stop_strings))
        if self.template is None:
            history = [token for message in self.messages for token in message.tokens]
            prompt = self._encode_after(history, text)
            prompt = prompt if history else self.tokenizer.with_start(np.array(prompt, self.tokenizer.dtype)).tolist()
        else:
            history, prompt = [], encode_prompt(self.template, self.tokenizer, self._turns(text))
        generation = TextGeneration(self.model, self.tokenizer, [history + prompt], config, self._stop_tokens)
        reply = self._stream_reply(text, prompt, generation)
        next(reply)  # start the generator: one that has not started does not run its `finally` when closed
        return reply

    def _turns(self, text: str) -> list[Turn]:
        """The conversation so far and a new message, as a chat template takes them."""
        turns: list[Turn] = []
        for message in self.messages:
            turns.append({"role": "user", "content": message.prompt})
            turns.append({"role": ASSISTANT, "content": message.reply})
        return [*turns, {"role": "user", "content": text}]

    def undo(self) -> Message:
        """Remove the last message and its reply; return it."""
        if not self.messages:
            raise ConfigError("nothing to undo: the conversation is empty\nfix: send a message first")
        return self.messages.pop()

    def reset(self) -> None:
        """Remove all messages."""
        self.messages.clear()

    def _stream_reply(self, text: str, prompt: list[int], generation: TextGeneration) -> Iterator[str]:
        sequence = generation.generation.sequences[0]
        try:
            yield ""  # started
            for _, piece in generation:
                yield piece
        finally:
            reply = generation.texts[0]
            # Tokens that were sampled but not shown (of a stop string or an incomplete character) are not recorded.
            tokens = sequence.generated_tokens
            all_shown = sequence.finish_reason == "stop_token" or (
                sequence.finish_reason == "length" and self._decode_after(sequence.prompt_tokens, tokens) == reply
            )
            shown = tokens if all_shown else self._encode_after(sequence.prompt_tokens, reply)
            record = Message(text, reply, (*prompt, *shown), sequence.finish_reason, tuple(sequence.notices))
            self.messages.append(record)

    def _encode_after(self, before: list[int], text: str) -> list[int]:
        """Encode text that continues other tokens.

        Some tokenizers prepend a space to their input, so a text that starts with a space would get two.
        """
        tokens: list[int] = self.tokenizer.encode(text).tolist()
        if text.startswith(" ") and self._decode_after(before, tokens) == f" {text}":
            tokens = self.tokenizer.encode(text[1:]).tolist()
        return tokens

    def _decode_after(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        """Decode tokens that continue others."""
        stream = self.tokenizer.stream(before)
        return "".join([*map(stream.push, tokens), stream.finish()])


def _ends_of_turn(template: ChatTemplate, tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The tokens, and the strings that are no single token, with which the model ends its turn."""
    tokens, strings = list[int](), list[str]()
    for end in {template.end_of_turn, template.variables.get("eos_token", "")} - {""}:
        ids = tokenizer.encode_with_spans(end)[0].tolist()
        if len(ids) == 1:
            tokens += ids
        else:
            strings.append(end)
    return tuple(sorted(tokens)), tuple(sorted(strings))
