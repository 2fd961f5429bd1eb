"""Generate text from a trained model, and chat with it: `normscope sample` and `normscope chat`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from normscope.data.conversations.template import ChatTemplate
from normscope.generate.chat import Conversation
from normscope.generate.config import GenerationConfig
from normscope.generate.text import GeneratedText, generate_text
from normscope.runs.read_source import load
from normscope.runs.run import Run
from normscope.storage.lock import is_locked

TEMPERATURE = 0.8
"""Default temperature of samples from a run."""


def sample(
    source: Run | str | Path,
    prompt: str | Sequence[str] = "",
    *,
    checkpoint: str | int = "best",
    device: str = "cpu",
    stream: Callable[[int, str], None] | None = None,
    **settings: Any,
) -> list[GeneratedText]:
    """Generate text from a trained model, like `normscope sample`.

    Args:
        source: A run, its folder, or a file or folder of another tool: see `load`.
        prompt: One or more prompts; an empty one starts a new document.
        checkpoint: Of a run: "best", "last", or a saved step.
        device: Device of the model.
        stream: Called with the index of the text and each piece of it.
        settings: Settings of `generate_text`: temperature (default 0.8), top_k, max_new_tokens, seed, samples, ...
    """
    model, tokenizer = load(source, checkpoint=checkpoint, device=device)
    settings = settings if settings.get("config") is not None else {"temperature": TEMPERATURE, **settings}
    return generate_text(model, tokenizer, prompt, stream=stream, **settings)


def chat(
    source: Run | str | Path,
    *,
    checkpoint: str | int = "best",
    device: str = "cpu",
    config: GenerationConfig | None = None,
) -> Conversation:
    """Start a conversation with a trained model, like `normscope chat`.

    A model with a chat template answers in turns; others continue the text.

    Args:
        source: A run, its folder, or a file or folder of another tool: see `load`.
        checkpoint, device: See `sample`.
        config: Generation settings; None for the defaults.
    """
    model, tokenizer = load(source, checkpoint=checkpoint, device=device)
    template = None if tokenizer.chat_template is None else ChatTemplate.of(tokenizer)
    return Conversation(model, tokenizer, config, template=template)


def unfinished_checkpoint_notice(run: Run) -> str | None:
    """A notice that an incomplete checkpoint is ignored, unless a training process is writing it."""
    steps = run.checkpoints.unfinished()
    if not steps or is_locked(run.folder):
        return None
    return f"ignoring the incomplete checkpoint of step {' and '.join(map(str, steps))} (no manifest)"
