"""A model of another tool in our terms: its config, its weights by our names, its tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from normscope.data.tokenizers import Tokenizer
from normscope.models.gpt import GPTConfig


@dataclass(frozen=True)
class ExternalCheckpoint:
    """A checkpoint of another tool. Weights are read one at a time, when they are looked up.

    Args:
        format: where it comes from, such as "Hugging Face llama" or "nanoGPT".
        path: the file or folder.
        config: the model's config.
        weights: our parameter names to tensors in the dtype in which they are stored.
        tokenizer: the model's tokenizer; None if the checkpoint has none.
        chat_template: Jinja template of a conversation; None if the checkpoint has none.
        notices: messages for the user, such as a tokenizer that was not found.
    """

    format: str
    path: Path
    config: GPTConfig
    weights: Mapping[str, Tensor]
    tokenizer: Tokenizer | None = None
    chat_template: str | None = None
    notices: tuple[str, ...] = ()
