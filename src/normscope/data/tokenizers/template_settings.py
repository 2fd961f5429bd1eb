"""tokenizer_config.json beside a tokenizer.json: the chat template, and the names of special tokens."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normscope.data.tokenizers.base import Tokenizer
from normscope.storage.files import open_regular, read_limited
from normscope.storage.json_files import MIB, JsonSource, to_json_bytes

TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
_MAX_BYTES = 4 * MIB
"""Limit of tokenizer_config.json, which has 1 MiB for thousands of special tokens."""
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_FIX = "restore it from a copy; it has the chat template"


@dataclass(frozen=True)
class TemplateSettings:
    """What tokenizer_config.json says.

    Args:
        chat_template: Jinja template of conversations; None if there is none.
        tokens: names of special tokens, such as bos_token.
    """

    chat_template: str | None = None
    tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def eos_token(self) -> str | None:
        return self.tokens.get("eos_token")

    def apply(self, tokenizer: Tokenizer) -> None:
        tokenizer.chat_template, tokenizer.template_variables = self.chat_template, self.tokens


def read_template_settings(folder: Path) -> TemplateSettings:
    """Read tokenizer_config.json and chat_template.jinja of a folder; either may be missing."""
    settings = TemplateSettings()
    if (folder / TOKENIZER_CONFIG).exists():
        with open_regular(folder / TOKENIZER_CONFIG) as file:
            settings = parse_template_settings(read_limited(file, folder / TOKENIZER_CONFIG, _MAX_BYTES), folder)
    if (folder / TEMPLATE_FILE).exists():
        with open_regular(folder / TEMPLATE_FILE) as file:
            template = read_limited(file, folder / TEMPLATE_FILE, 2**20).decode("utf-8", "replace")
        settings = TemplateSettings(template, settings.tokens)
    return settings


def parse_template_settings(data: bytes, folder: Path) -> TemplateSettings:
    """Parse the contents of a tokenizer_config.json."""
    # transformers writes 10^30 for "no limit", which no other reader needs to understand.
    data = re.sub(rb'("model_max_length": *)[0-9]{20,40}', rb"\g<1>0", data)
    content = JsonSource(folder / TOKENIZER_CONFIG, _FIX).parse(data, dict[str, Any], allow_any_text=True)
    found = {name: content.get(name) for name in _TOKENS}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in found.items()}
    template = content.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    tokens = {name: text for name, text in texts.items() if isinstance(text, str)}
    return TemplateSettings(template if isinstance(template, str) else None, tokens)


def template_settings(tokenizer: Tokenizer) -> bytes:
    """The contents of tokenizer_config.json."""
    return to_json_bytes({"chat_template": tokenizer.chat_template, **tokenizer.template_variables})
