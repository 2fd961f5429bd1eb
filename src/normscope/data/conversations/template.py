"""Chat templates: a conversation as the text that a model was trained on, and the parts that the assistant writes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jinja2 import Template, TemplateError

from normscope.data.conversations.messages import ASSISTANT, Message, check_messages
from normscope.data.conversations.sandbox import (
    MARK_END,
    MARK_START,
    MAX_SECONDS,
    MAX_TEMPLATE,
    ChatEnvironment,
    TemplateTimeoutError,
    render,
)
from normscope.data.tokenizers.base import Tokenizer
from normscope.errors import ConfigError

DEFAULT_TEMPLATE = """\
{%- for message in messages -%}
{{ message['role'] | capitalize + ':\\n' }}
{%- if message['role'] == 'assistant' -%}
{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}
{%- else -%}
{{ message['content'] }}
{%- endif -%}
{{ '\\n\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ 'Assistant:\\n' }}
{%- endif -%}
"""
"""The template of tokenizers that have none: plain text, and the end-of-text token after each reply."""
_PROBE = "zq"  # the reply of a made-up conversation
_MARKED = "\ufdd2zq\ufdd3"  # a content that occurs in no other place

Span = tuple[int, int]


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template.

    Args:
        source: the Jinja template.
        variables: what it may use besides the messages, such as bos_token.
    """

    source: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.source) > MAX_TEMPLATE:
            raise ConfigError(
                f"the chat template has {len(self.source):,} characters: at most {MAX_TEMPLATE:,} are read"
            )
        try:
            _ = self._template
        except (TemplateError, RecursionError, SyntaxError) as error:
            raise ConfigError(f"the chat template is invalid: {error}\nfix: correct tokenizer_config.json") from None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "ChatTemplate":
        """The template of a tokenizer; the default one if it has none."""
        if tokenizer.chat_template is None and not tokenizer.eos_token:
            raise ConfigError(
                "the tokenizer has neither a chat template nor an end-of-text token, with which a reply could end\n"
                "fix: use another model"
            )
        variables = {"bos_token": "", "eos_token": tokenizer.eos_token, **tokenizer.template_variables}
        return cls(DEFAULT_TEMPLATE if tokenizer.chat_template is None else tokenizer.chat_template, variables)

    @cached_property
    def _template(self) -> Template:
        return ChatEnvironment().from_string(self.source)

    def prompt(self, messages: Sequence[Message]) -> str:
        """The text before the next reply of the assistant."""
        return self._render(messages, add_generation_prompt=True).replace(MARK_START, "").replace(MARK_END, "")

    def text_and_replies(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """The text of a conversation, and where in it the assistant writes.

        These are the parts in {% generation %} tags. Of a template without them, each reply goes from where the prompt
        of the conversation so far ends to where the conversation with the reply ends.
        """
        marked = self._render(messages, add_generation_prompt=False)
        if MARK_START in marked:
            return _without_marks(marked)
        return marked, [self._reply(messages, i, marked) for i, one in enumerate(messages) if one["role"] == ASSISTANT]

    @cached_property
    def end_of_turn(self) -> str:
        """The text after a reply, such as "<|im_end|>", as a made-up conversation shows it.

        It is what follows the reply whether it is the last one or not: some templates end the whole text too.
        """
        asked: Message = {"role": "user", "content": "hi"}
        messages: list[Message] = [asked, {"role": ASSISTANT, "content": _PROBE}]
        end = self._render(messages, add_generation_prompt=False).rpartition(_PROBE)[2]
        if MARK_END in end:
            return end.partition(MARK_END)[0].strip()
        try:
            more = self._render([*messages, asked], add_generation_prompt=False).rpartition(_PROBE)[2]
        except ConfigError:
            return end.strip()
        same = next((i for i, (a, b) in enumerate(zip(end, more, strict=False)) if a != b), min(len(end), len(more)))
        common = end if same == len(end) else re.sub(r"[<\[][^>\]]*$", "", end[:same])  # no part of a special token
        return common.strip() or end.strip()

    def _reply(self, messages: Sequence[Message], index: int, whole: str) -> Span:
        after = self._render(messages[: index + 1], add_generation_prompt=False)
        before = self._render(messages[:index], add_generation_prompt=True) if index else None
        if before is None or not (after.startswith(before) and whole.startswith(after)):
            return self._content(messages, index, whole)
        # What follows the end of the turn, usually a line end, is not the assistant's.
        return len(before), len(after.rstrip()) if after.rstrip() != before.rstrip() else len(after)

    def _content(self, messages: Sequence[Message], index: int, whole: str) -> Span:
        """Where the content of a reply is in the text, with the end of its turn: where another content would be."""
        marked: Message = {"role": messages[index]["role"], "content": _MARKED}
        other = self._render([*messages[:index], marked, *messages[index + 1 :]], add_generation_prompt=False)
        before, _, after = other.partition(_MARKED)
        stop = len(whole) - len(after)
        if other.count(_MARKED) != 1 or len(before) > stop or not (whole.startswith(before) and whole.endswith(after)):
            raise ConfigError(
                "the chat template writes earlier turns differently once later ones follow, so it is unknown what the "
                "assistant writes\nfix: add {% generation %} and {% endgeneration %} around it in the template, or "
                "keep one reply in each conversation"
            )
        end = re.match(rf"\s*{re.escape(self.end_of_turn)}", after)
        return len(before), stop + (len(end[0]) if end is not None else 0)

    def _render(self, messages: Sequence[Message], **options: Any) -> str:
        checked = check_messages(messages)
        for number, message in enumerate(checked, start=1):
            if MARK_START in message["content"] or MARK_END in message["content"]:
                raise ConfigError(f"message {number} has a noncharacter of Unicode\nfix: remove it")
        try:
            return render(self._template, messages=checked, tools=None, documents=None, **self.variables, **options)
        except TemplateTimeoutError:
            raise ConfigError(f"the chat template took more than {MAX_SECONDS:g} s\nfix: use another one") from None
        except MemoryError:
            raise ConfigError("the chat template needs too much memory\nfix: use another one") from None
        except Exception as error:  # whatever a template does wrong
            raise ConfigError(f"the chat template does not take this conversation: {error}") from None


def _without_marks(marked: str) -> tuple[str, list[Span]]:
    """Remove the marks of {% generation %}; return the text and the spans between them.

    >>> _without_marks(f"a{MARK_START}bc{MARK_END}d")
    ('abcd', [(1, 3)])
    """
    parts, spans, size = [], [], 0
    for number, part in enumerate(marked.split(MARK_START)):
        inside, end, outside = part.partition(MARK_END) if number else ("", "", part)
        if number and not end:
            raise ConfigError("the chat template has {% generation %} tags in each other\nfix: close each one first")
        if inside:
            spans.append((size, size + len(inside)))
        parts += [inside, outside]
        size += len(inside) + len(outside)
    return "".join(parts), spans
