"""Conversations: each reply sees the whole conversation, and each message can be undone."""

from typing import Any

import pytest

from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer
from normscope.errors import ArgumentTypeError, ConfigError, NormscopeError, TokenError
from normscope.generate.chat import Conversation
from normscope.generate.config import GenerationConfig
from normscope.generate.text import generate_text
from tests.data.tokenizers.examples import like_llama
from tests.generate.test_text import parrot
from tests.generate.writers import BYTES, LETTERS, always, writer
from tests.support import every_refusal

MODEL = writer(context=64)


def talk(**settings: Any) -> Conversation:
    return Conversation(MODEL, LETTERS, **{"max_new_tokens": 6, "seed": 3, **settings})


def test_a_reply_continues_the_whole_conversation() -> None:
    conversation = talk()
    for prompt in ("hello ", "and then ", ""):
        before = conversation.text
        answer = "".join(conversation.send(prompt))
        (wanted,) = generate_text(MODEL, LETTERS, before + prompt, max_new_tokens=6, seed=3)
        assert answer == wanted.text
        assert conversation.text == before + prompt + answer
        assert conversation.messages[-1].finish_reason == wanted.finish_reason
    assert [turn.prompt for turn in conversation.messages] == ["hello ", "and then ", ""]


def test_a_long_conversation_is_truncated_to_its_last_tokens() -> None:
    conversation = talk()
    for _ in range(5):
        list(conversation.send("hello and so on "))
    assert "prompt truncated to its last 64 of" in conversation.messages[-1].notices[0]
    assert len(conversation.messages) == 5


def test_undo_and_reset() -> None:
    conversation = talk()
    list(conversation.send("one "))
    kept = conversation.text
    second = list(conversation.send("two "))
    turn = conversation.undo()
    assert (turn.prompt, turn.reply) == ("two ", "".join(second))
    assert conversation.text == kept
    assert list(conversation.send("two ")) == second  # it answers as before
    conversation.reset()
    assert conversation.messages == []
    assert conversation.text == ""


def test_a_reply_is_streamed_and_can_be_interrupted() -> None:
    conversation = talk(max_new_tokens=30)
    answer = conversation.send("hello ")
    assert conversation.messages == []
    heard = next(answer) + next(answer)
    answer.close()  # type: ignore[attr-defined]
    turn = conversation.messages[0]
    assert (turn.reply, turn.finish_reason) == (heard, None)
    assert conversation.text == "hello " + heard
    assert LETTERS.decode(turn.tokens) == "hello " + heard


def test_a_reply_interrupted_before_its_first_piece_is_recorded() -> None:
    conversation = talk()
    conversation.send("hello ").close()  # type: ignore[attr-defined]
    assert [(turn.prompt, turn.reply, turn.finish_reason) for turn in conversation.messages] == [("hello ", "", None)]
    assert LETTERS.decode(conversation.messages[0].tokens) == "hello "


def test_a_stop_string_is_not_recorded() -> None:
    whole = "".join(talk(max_new_tokens=12).send("hello "))
    assert len(whole) == 12
    conversation = talk(max_new_tokens=12, stop=whole[5:8])
    answer = "".join(conversation.send("hello "))
    assert answer == whole[: whole.index(whole[5:8])]
    assert conversation.messages[0].finish_reason == "stop"
    assert LETTERS.decode(conversation.messages[0].tokens) == "hello " + answer


@pytest.mark.parametrize("stop", [(), (" the the the",)])
def test_leading_spaces_are_encoded_once(stop: tuple[str, ...]) -> None:
    """Llama's tokenizer puts a space before whatever it is given, also before what only goes on."""
    tokenizer = HuggingFaceTokenizer(like_llama())
    model = always(tokenizer.vocab_size, tokenizer.encode("the").item())
    conversation = Conversation(model, tokenizer, stop=stop, max_new_tokens=4)
    for prompt in ("cat", " at"):
        answer = conversation.send(prompt)
        if not stop:
            next(answer)
            answer.close()  # type: ignore[attr-defined]
        assert "".join(answer) == ""
    tokens = [token for turn in conversation.messages for token in turn.tokens]
    assert tokenizer.decode(tokens) == conversation.text == ("cat at" if stop else "cat the at the")


def test_a_stop_token_ends_the_reply_and_is_not_recorded() -> None:
    conversation = talk(max_new_tokens=60)
    for prompt in "abcdefgh":
        list(conversation.send(prompt))
    ended = [turn for turn in conversation.messages if turn.finish_reason == "stop_token"]
    assert ended
    assert all(LETTERS.eos_token_id not in turn.tokens for turn in ended)
    assert all(LETTERS.decode(turn.tokens) == turn.prompt + turn.reply for turn in conversation.messages)


def test_the_config_may_be_replaced_between_messages() -> None:
    conversation = talk()
    list(conversation.send("one "))
    conversation.config = GenerationConfig(temperature=0, max_new_tokens=2, samples=3)
    answer = "".join(conversation.send("two "))
    assert len(answer) <= 2


def test_text_that_cannot_be_encoded_changes_nothing() -> None:
    conversation = talk()
    with pytest.raises(TokenError, match="alphabet"):
        conversation.send("ü")
    assert conversation.messages == []


@every_refusal(
    ("undo", ConfigError, r"nothing to undo.*\nfix: send", lambda: talk().undo()),
    ("tokenizer", ConfigError, "the tokenizer has 257 tokens", lambda: Conversation(MODEL, BYTES)),
    ("settings", ConfigError, "expects a GenerationConfig", lambda: Conversation(MODEL, LETTERS, 3)),  # type: ignore[arg-type]
    ("model", ConfigError, "must be a GPT, but got str", lambda: Conversation("gpt2", LETTERS)),  # type: ignore[arg-type]
    ("text", ArgumentTypeError, "text must be a str", lambda: talk().send(3)),  # type: ignore[arg-type]
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()


def test_an_incomplete_character_is_not_recorded() -> None:
    """The model would see it before the next words, of which the user knows nothing."""
    text = "a€".encode()[:-1]
    conversation = Conversation(parrot(text), BYTES, GenerationConfig(max_new_tokens=3, temperature=0))
    assert "".join(conversation.send("")) == "a"
    assert conversation.messages[0].tokens == (ord("a"),)
