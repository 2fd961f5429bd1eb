"""Chat templates: the same text, tokens and masks as transformers, and hostile templates are stopped."""

import json
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from normscope.data.conversations import sandbox
from normscope.data.conversations.encode import encode_conversation, encode_prompt
from normscope.data.conversations.messages import Message, check_messages
from normscope.data.conversations.template import ChatTemplate
from normscope.data.tokenizers import ByteTokenizer
from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer, train_bpe
from normscope.errors import ConfigError

CHATML = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}
{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
TAGGED = """{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}
{{ '[A] ' }}{% generation %}{{ message.content + eos_token }}{% endgeneration %}{{ '\\n' }}{% else %}
{{ '[' + message.role[0] | upper + '] ' + message['content'] + '\\n' }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '[A] ' }}{% endif %}"""
MANY_WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "said:",
    "hello,",
    "how",
    "are",
    "you?",
    "I'm",
    "fine!\n",
    "",
    "Thanks.",
    "",
]
CHAT: list[Message] = [
    {"role": "user", "content": "hello  there"},
    {"role": "assistant", "content": "hi,\nhow are you?"},
    {"role": "user", "content": "fine"},
    {"role": "assistant", "content": "Thanks!"},
]


@pytest.fixture(scope="module")
def tokenizer() -> HuggingFaceTokenizer:
    trained = train_bpe([" ".join(MANY_WORDS) * 3 + "system user assistant"], 300)
    library = trained._library
    library.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return HuggingFaceTokenizer(library)


def theirs(tokenizer: HuggingFaceTokenizer, template: str) -> Any:
    library = type(tokenizer._library).from_str(tokenizer.to_json())
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=library, eos_token="<|end|>", bos_token="<|end|>", chat_template=template
    )


def conversations(seed: int) -> list[Message]:
    rng = random.Random(seed)
    found: list[Message] = []
    for number in range(2 * rng.randint(1, 3)):
        words = [rng.choice(MANY_WORDS) for _ in range(rng.randint(1, 6))]
        found.append({"role": ("user", "assistant")[number % 2], "content": " ".join(words).strip() or "a"})
    return found


@pytest.mark.parametrize("seed", range(5))
def test_text_tokens_and_mask_of_a_template_with_generation_tags_are_those_of_transformers(
    tokenizer: HuggingFaceTokenizer, seed: int
) -> None:
    template = ChatTemplate(TAGGED, {"bos_token": "<|end|>", "eos_token": "<|end|>"})
    messages, other = conversations(seed), theirs(tokenizer, TAGGED)
    wanted = other.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    tokens, written = encode_conversation(template, tokenizer, messages)
    assert tokens.tolist() == wanted["input_ids"]
    assert written.astype(int).tolist() == wanted["assistant_masks"]
    prompt = other.apply_chat_template(messages[:-1], add_generation_prompt=True)["input_ids"]
    assert encode_prompt(template, tokenizer, messages[:-1]) == prompt


def test_without_tags_the_replies_and_the_ends_of_their_turns_are_marked(tokenizer: HuggingFaceTokenizer) -> None:
    template = ChatTemplate(CHATML)
    tokens, written = encode_conversation(template, tokenizer, CHAT)
    wanted = theirs(tokenizer, CHATML).apply_chat_template(CHAT)["input_ids"]
    assert tokens.tolist() == wanted
    text = template.text_and_replies(CHAT)[0]
    assert text.startswith("<|im_start|>system\nBe kind.")
    spans = tokenizer.encode_with_spans(text)[1]
    marked = "".join(text[start:stop] for (start, stop), own in zip(spans.tolist(), written, strict=True) if own)
    assert marked == "hi,\nhow are you?<|im_end|>Thanks!<|im_end|>"
    assert template.end_of_turn == "<|im_end|>"


def test_a_tokenizer_without_a_template_gets_a_plain_one() -> None:
    tokenizer = ByteTokenizer()
    template = ChatTemplate.of(tokenizer)
    assert template.prompt(CHAT[:1]) == "User:\nhello  there\n\nAssistant:\n"
    tokens, written = encode_conversation(template, tokenizer, CHAT)
    assert tokenizer.decode(tokens[written]) == "hi,\nhow are you?Thanks!"
    assert (tokens[written] == tokenizer.eos_token_id).sum() == 2
    assert template.end_of_turn == tokenizer.eos_token
    spans = tokenizer.encode_with_spans("aé<|end|>b")[1]
    assert spans.tolist() == [[0, 1], [1, 2], [1, 2], [2, 9], [9, 10]]


def test_a_template_that_rewrites_history_is_refused_without_tags() -> None:
    template = ChatTemplate("{% for m in messages %}{{ loop.length }}{{ m.content }} {{ m.content }}{% endfor %}")
    with pytest.raises(ConfigError, match="writes earlier turns differently"):
        template.text_and_replies(CHAT)


PHI_3 = """{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}
{{ '<|assistant|>\\n' if add_generation_prompt else '<|endoftext|>' }}"""
QWEN_3 = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and loop.last %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{{- m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
OTHERS: dict[str, tuple[str, list[str], str]] = {
    "ends-the-text": (
        PHI_3, ["hi,\nhow are you?<|end|>", "Thanks!<|end|>\n<|endoftext|>"], "<|end|>",
    ),
    "drops-thoughts": (
        QWEN_3, ["hi,\nhow are you?<|im_end|>", "<think>\n\n</think>\n\nThanks!<|im_end|>"], "<|im_end|>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_replies_that_are_written_differently_at_the_end_are_marked(kind: str) -> None:
    source, wanted, end = OTHERS[kind]
    template = ChatTemplate(source)
    text, spans = template.text_and_replies(CHAT)
    assert [text[start:stop].replace("<|end|>\n\n", "<|end|>\n") for start, stop in spans] == wanted
    assert template.end_of_turn == end


def test_what_a_template_puts_before_a_first_reply_is_not_the_assistants() -> None:
    template = ChatTemplate(CHATML)
    text, spans = template.text_and_replies([{"role": "assistant", "content": "Welcome!"}, *CHAT])
    assert text.startswith("<|im_start|>system\nBe kind.")
    assert text[slice(*spans[0])] == "Welcome!<|im_end|>"


def test_contents_in_parts_are_joined(tokenizer: HuggingFaceTokenizer) -> None:
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": " there"}]
    template, messages = ChatTemplate(CHATML), [{**CHAT[0], "content": parts}, *CHAT[1:]]
    assert check_messages(messages) == CHAT
    tokens, written = encode_conversation(template, tokenizer, messages)  # type: ignore[arg-type]
    expected = encode_conversation(template, tokenizer, CHAT)
    assert np.array_equal(tokens, expected[0])
    assert np.array_equal(written, expected[1])
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(ConfigError, match="expected a string"):
        check_messages(image)
    call: list[Any] = [{"role": "assistant", "content": None, "tool_calls": [{}]}]
    with pytest.raises(ConfigError, match="tool calls are not supported"):
        encode_conversation(template, tokenizer, call)


def test_a_special_token_in_a_message_is_refused(tokenizer: HuggingFaceTokenizer) -> None:
    with pytest.raises(ConfigError, match=r"message 1 contains the special token <\|im_end\|>"):
        encode_prompt(ChatTemplate(CHATML), tokenizer, [{"role": "user", "content": "a<|im_end|>b"}])


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
        "{{ 'a' * 999999999 }}",
        "{{ [0] * 999999999 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no system role') }}",
        "{% include 'x' %}",
        "{{ lipsum(9999) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ undefined.attribute }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{{ 'a'.encode() * 99999999 }}",
        "{{ (5).to_bytes(99999999, 'big') }}",
        "{{ ('f' * 99999) | int(0, 16) == 1 }}",
        *(
            f"{{% set all = namespace(x='a') %}}{{% for i in range(28) %}}{{% set all.x = {twice} %}}{{% endfor %}}"
            "{{ all.x == messages }}{{ all.x | string | length }}"
            for twice in (
                "[all.x, all.x]",
                "(all.x, all.x)",
                "{'a': all.x, 'b': all.x}",
                "dict(a=all.x, b=all.x)",
                "[all.x] * 2",
                "[none, none] | map('default', all.x, true) | list",
            )
        ),
        "{% macro f(x, n) %}{% if n %}{{ f(namespace(a=x, b=x), n - 1) }}{% else %}{{ x }}{% endif %}{% endmacro %}"
        "{{ raise_exception(f('a', 28)) }}",
    ],
)
def test_hostile_templates_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.2)
    start = time.monotonic()
    with pytest.raises(ConfigError, match="chat template"):
        ChatTemplate(source).prompt(CHAT)
    assert time.monotonic() - start < 20  # of a busy machine


@pytest.mark.parametrize(
    "source",
    [
        "{{ ('a' * 60000).replace('a', 'b' * 60000) }}",
        "{{ ('b' * 60000) | replace('', 'b' * 60000) }}",
        "{{ ('y' * 60000).join('x' * 60000) }}",
        "{{ ('x' * 60000) | join('y' * 60000) }}",
        "{{ [1] | batch(999999999, 'x') | list }}",
        "{{ [1] | slice(999999999) | list }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{% set all = namespace(x='0123456789') %}{% for i in range(99) %}{% set all.x = all.x ~ all.x %}{% endfor %}",
        "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + "{{ " + "f(" * 40 + "'0123456789'" + ")" * 40 + " }}",
    ],
)
def test_values_that_would_fill_the_memory_are_never_made(source: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=r"too long|too many|too large"):
            ChatTemplate(source).prompt(CHAT)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def test_an_invalid_template_is_refused() -> None:
    with pytest.raises(ConfigError, match="the chat template is invalid"):
        ChatTemplate("{% for %}")


def test_it_is_read_from_the_files_of_a_tokenizer(tokenizer: HuggingFaceTokenizer, tmp_path: Path) -> None:
    from normscope.data.tokenizers.load import load_tokenizer

    theirs(tokenizer, CHATML).save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.chat_template == CHATML
    assert loaded.template_variables["bos_token"] == "<|end|>"
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    named = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "y"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named, "eos_token": {"content": "E"}}))
    loaded = load_tokenizer(tmp_path)
    assert (loaded.chat_template, dict(loaded.template_variables)) == ("x", {"eos_token": "E"})


def test_spans_follow_characters_of_several_tokens(tokenizer: HuggingFaceTokenizer) -> None:
    tokens, spans = tokenizer.encode_with_spans("é!")
    assert spans.tolist() == [[0, 1], [0, 1], [1, 2]]
    assert isinstance(tokens, np.ndarray)
