"""tokenizer_config.json beside a tokenizer.json: the chat template, and the special tokens that it may use."""

import re
from pathlib import Path
from typing import Any

from normscope.data.tokenizers.base import Tokenizer
from normscope.storage.files import open_regular, read_limited
from normscope.storage.json_files import LARGE_FILE_BYTES, JsonSource, to_json_bytes

TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_FIX = "restore it from a copy; it has the chat template"


def read_template_settings(tokenizer: Tokenizer, folder: Path) -> None:
    """Set the chat template of a tokenizer from the files in its folder, if there are any."""
    if (folder / TOKENIZER_CONFIG).is_file():
        with open_regular(folder / TOKENIZER_CONFIG) as file:
            set_template(tokenizer, read_limited(file, folder / TOKENIZER_CONFIG, LARGE_FILE_BYTES), folder)
    if (folder / TEMPLATE_FILE).is_file():
        with open_regular(folder / TEMPLATE_FILE) as file:
            tokenizer.chat_template = read_limited(file, folder / TEMPLATE_FILE, 2**20).decode("utf-8", "replace")


def set_template(tokenizer: Tokenizer, data: bytes, folder: Path) -> None:
    """Set the chat template of a tokenizer from the contents of a tokenizer_config.json."""
    # transformers writes 10^30 for "no limit", which no other reader needs to understand.
    data = re.sub(rb'("model_max_length": *)[0-9]{20,40}', rb"\g<1>0", data)
    content = JsonSource(folder / TOKENIZER_CONFIG, _FIX).parse(data, dict[str, Any], allow_any_text=True)
    found = {name: content.get(name) for name in _TOKENS}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in found.items()}
    tokenizer.template_variables = {name: text for name, text in texts.items() if isinstance(text, str)}
    template = content.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    tokenizer.chat_template = template if isinstance(template, str) else None


def template_settings(tokenizer: Tokenizer) -> bytes:
    """The contents of tokenizer_config.json."""
    return to_json_bytes({"chat_template": tokenizer.chat_template, **tokenizer.template_variables})
