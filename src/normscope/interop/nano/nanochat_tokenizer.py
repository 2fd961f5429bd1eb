"""nanochat's tokenizer, a pickled tiktoken encoding, and the form of its conversations."""

from pathlib import Path

from normscope.data.tokenizers import Tokenizer
from normscope.errors import WeightsError
from normscope.interop.files.tiktoken_pickle import read_tiktoken

CHAT_TEMPLATE = (
    "<|bos|>"
    "{% if messages[0]['role'] == 'system' %}"
    "{% set system = messages[0]['content'] + '\n\n' %}{% set messages = messages[1:] %}"
    "{% else %}{% set system = '' %}{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}"
    "<|user_start|>{{ system if loop.first else '' }}{{ message['content'] }}<|user_end|>"
    "{% elif message['role'] == 'assistant' %}"
    "<|assistant_start|>{% generation %}{{ message['content'] }}<|assistant_end|>{% endgeneration %}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant_start|>{% endif %}"
)
"""Conversations as nanochat trains on them: a system message is the start of the first message of the user."""


def find_tokenizer(folder: Path, vocab_size: int) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """Read the tokenizer.pkl of a checkpoint folder; None with a notice if there is none."""
    places = (
        folder / "tokenizer.pkl",
        folder / "tokenizer" / "tokenizer.pkl",
        _shared_folder(folder) / "tokenizer.pkl",
    )
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        return None, (f"no tokenizer found: copy nanochat's tokenizer.pkl to {folder}",)
    from normscope.interop.nano.tiktoken_bpe import tokenizer_from_ranks  # imports tokenizers

    ranks = read_tiktoken(path)
    size = max([*ranks.ranks.values(), *ranks.special_tokens.values()]) + 1
    if size != vocab_size:
        raise WeightsError(
            f"the tokenizer {path} has {size:,} tokens, but the model {vocab_size:,}\n"
            f"fix: copy the tokenizer.pkl that the model was trained with to {folder}"
        )
    tokenizer = tokenizer_from_ranks(ranks)
    return tokenizer, tokenizer.notices


def _shared_folder(checkpoint: Path) -> Path:
    """nanochat keeps checkpoints in BASE/KIND_checkpoints/NAME, and the tokenizer in BASE/tokenizer."""
    return checkpoint.absolute().parent.parent / "tokenizer"
