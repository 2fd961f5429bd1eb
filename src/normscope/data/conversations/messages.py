"""The messages of a conversation, and .jsonl files with one conversation a line."""

import codecs
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

from normscope.data.sources import SourceFile, SourceFingerprint
from normscope.errors import ConfigError, FileError
from normscope.storage.files import os_errors

ASSISTANT = "assistant"
ROLES = ("system", "developer", "user", ASSISTANT, "tool")
FIELD = "messages"
_EXAMPLE = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}'
_MAX_LINE = 2**24


class Message(TypedDict):
    """One message, in the form of OpenAI and Hugging Face."""

    role: str
    content: str


def has_conversations(source: SourceFile) -> bool:
    """Whether a .jsonl file has conversations: its first line has messages, and not the column that holds text."""
    if source.format != "jsonl":
        return False
    with os_errors(f"cannot read {source.name}", "check its permissions"), source.path.open("rb") as file:
        while line := file.readline(_MAX_LINE):
            if line.strip():
                try:
                    row = json.loads(line.removeprefix(codecs.BOM_UTF8))
                except (ValueError, RecursionError):
                    return False  # reported when the file is read
                return isinstance(row, dict) and FIELD in row and source.column not in row
    return False


def read_conversations(
    source: SourceFile, digest: "hashlib._Hash | None" = None
) -> Iterator[tuple[int, list[Message]]]:
    """Yield the line number and the messages of each conversation; `digest` is updated with all bytes."""
    with os_errors(f"cannot read {source.name}", "check its permissions"), source.path.open("rb") as file:
        number = 0
        while line := file.readline(_MAX_LINE + 1):
            number += 1
            if len(line) > _MAX_LINE:
                raise ConfigError(f"{source.name}, line {number}: longer than {_MAX_LINE:,} bytes\nfix: shorten it")
            if digest is not None:
                digest.update(line)
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                yield number, _parse_line(source, number, line)


def fingerprint(source: SourceFile, digest: "hashlib._Hash") -> SourceFingerprint:
    """The fingerprint of a file whose bytes went into the digest."""
    status = source.path.stat()
    path = str(source.path.resolve())
    return SourceFingerprint(source.name, path, status.st_size, status.st_mtime_ns, digest.hexdigest())


def check_messages(messages: object) -> list[Message]:
    """Validate messages; raises a ConfigError. Contents in parts become one text.

    >>> check_messages([{"role": "user", "content": "Hi", "name": "me"}])
    [{'role': 'user', 'content': 'Hi'}]
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise ConfigError(f"{FIELD!r} must be a list of messages\nfix: {_EXAMPLE}")
    return [_check_message(number, message) for number, message in enumerate(messages, start=1)]


def _check_message(number: int, message: object) -> Message:
    if not isinstance(message, dict):
        raise ConfigError(f"message {number} is {_shown(message)}, not an object\nfix: {_EXAMPLE}")
    role, content = message.get("role"), _text(message.get("content"))
    if role not in ROLES:
        raise ConfigError(f"message {number} has the role {_shown(role)}\nfix: use one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        more = ", and tool calls are not supported" if message.get("tool_calls") else ""
        raise ConfigError(
            f"message {number} ({role}) has the content {_shown(content)}: expected a string{more}\n"
            f"fix: give the text of the message as its content"
        )
    try:
        content.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"message {number} has a lone surrogate\nfix: write both surrogates of the pair") from None
    return {"role": str(role), "content": content}


def _text(content: Any) -> Any:
    """The text of a content in parts, if all of them are text."""
    if not isinstance(content, list) or not content:
        return content
    texts = [one.get("text") for one in content if isinstance(one, dict) and one.get("type") == "text"]
    parts = [text for text in texts if isinstance(text, str)]
    return "".join(parts) if len(parts) == len(content) else content


def _shown(value: Any) -> str:
    return json.dumps(value, default=repr)[:40]


def _parse_line(source: SourceFile, number: int, line: bytes) -> list[Message]:
    where = f"{source.name}, line {number}"
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        raise FileError(f"{where}: invalid JSON: {error}\nfix: fix or delete the line") from None
    if not isinstance(row, dict) or FIELD not in row:
        raise FileError(f"{where}: expected an object with {FIELD!r}\nfix: {_EXAMPLE}")
    try:
        return check_messages(row[FIELD])
    except ConfigError as error:
        raise FileError(f"{where}: {error}") from None
