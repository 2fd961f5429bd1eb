"""A conversation with a model: what was said so far, as data. What it looks like is for others to decide."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from normscope.blocks.checks import check_config
from normscope.data.tokenizers import Tokenizer
from normscope.errors import ConfigError
from normscope.generate.sequence import StoppedBy
from normscope.generate.text import TextSettings, Writer, check_fit
from normscope.models.gpt import GPT


@dataclass(frozen=True)
class Turn:
    """What one said, and how the model went on.

    Args:
        said: the words that were given.
        answer: the model's, as far as they were listened to.
        tokens: all of it, as the model reads it. An end is left out, so that the model sees what was before it.
        stopped_by: why the answer ended; None if it was broken off.
        notices: what happened on the way that a reader may want to know.
    """

    said: str
    answer: str
    tokens: tuple[int, ...]
    stopped_by: StoppedBy | None
    notices: tuple[str, ...]


class Conversation:
    """A text that a user and a model write in turns. The model continues all of it, or the newest of it that it sees.

    >>> from normscope.data.tokenizers import CharacterTokenizer
    >>> from normscope.models.presets import llama
    >>> tokenizer = CharacterTokenizer.of(["hello world"])
    >>> model = GPT(llama(vocab_size=tokenizer.vocab_size, context=32, depth=2, width=64, heads=4))
    >>> talk = Conversation(model, tokenizer, TextSettings(max_new_tokens=4))
    >>> answer = "".join(talk.say("hello "))
    >>> talk.text == "hello " + answer
    True
    >>> talk.undo().said, talk.text
    ('hello ', '')

    Args:
        model: a GPT, in any mode; it is left as it was.
        tokenizer: the one that the model was trained with.
        settings: how answers are written; None for the defaults. They may be replaced between turns.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, settings: TextSettings | None = None) -> None:
        check_fit(model, tokenizer)
        self.model, self.tokenizer = model, tokenizer
        self.settings = TextSettings() if settings is None else settings
        check_config(self.settings, TextSettings, "a conversation")
        self.turns: list[Turn] = []

    @property
    def text(self) -> str:
        """All that was said."""
        return "".join(turn.said + turn.answer for turn in self.turns)

    def say(self, text: str) -> Iterator[str]:
        """Say something; the answer comes piece by piece.

        The turn is remembered when the answer has ended. An answer that is not listened to, because the iterator is
        closed or something interrupts it, is remembered as far as it came. What cannot be said is refused at once.
        """
        history = [token for turn in self.turns for token in turn.tokens]
        said = self._going_on(history, text)
        answer = self._answer(text, said, Writer(self.model, self.tokenizer, [history + said], self.settings))
        next(answer)  # an iterator that has not begun would not notice that it is closed
        return answer

    def undo(self) -> Turn:
        """Take the last turn back; returns it."""
        if not self.turns:
            raise ConfigError("nothing was said yet that could be taken back\nfix: say something first")
        return self.turns.pop()

    def reset(self) -> None:
        """Begin anew."""
        self.turns.clear()

    def _answer(self, text: str, said: list[int], writer: Writer) -> Iterator[str]:
        row = writer.generation.rows[0]
        try:
            yield ""  # it has begun
            for _, piece in writer:
                yield piece
        finally:
            answer = writer.texts[0]
            # Tokens that were chosen but not shown, of a stop string or of half a character, are not remembered.
            all_shown = row.stopped_by == "end" or (
                row.stopped_by == "length" and self._text_of(row.written, row.prompted) == answer
            )
            shown = row.written if all_shown else self._going_on(row.prompted, answer)
            self.turns.append(Turn(text, answer, (*said, *shown), row.stopped_by, tuple(row.notices)))

    def _going_on(self, before: list[int], text: str) -> list[int]:
        """The tokens of a text that goes on from others.

        Some tokenizers put a space before whatever they are given. So a text with a space of its own would have two.
        """
        tokens: list[int] = self.tokenizer.encode(text).tolist()
        if text.startswith(" ") and self._text_of(tokens, before) == f" {text}":
            tokens = self.tokenizer.encode(text[1:]).tolist()
        return tokens

    def _text_of(self, tokens: Sequence[int], before: Sequence[int]) -> str:
        """The text of tokens that go on from others."""
        stream = self.tokenizer.stream(before)
        return "".join([*map(stream.push, tokens), stream.finish()])
