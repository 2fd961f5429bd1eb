"""`normscope sample`: generate text from a trained model."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from normscope.cli.generation import GenerationOptions, print_checkpoint_notice
from normscope.cli.options import Flag, Quiet, option, read_arguments
from normscope.generate.text import GeneratedText
from normscope.render.streaming import StreamDisplay, print_text
from normscope.runs.sample import sample


@dataclass(frozen=True)
class Sample(GenerationOptions):
    """Generate text from a trained model.

    Example: normscope sample runs/stories --prompt "Once upon a time" -n 3
    """

    prompt: Annotated[tuple[str, ...], option("TEXT ...")] = ("",)
    """One or more prompts. Without one, start a new document."""

    samples: Annotated[int, tyro.conf.arg(metavar="N", aliases=["-n"])] = 1
    """Number of samples per prompt."""

    allow_special: Flag = False
    """Parse special tokens such as <|endoftext|> in prompts."""

    json: Flag = False
    """Print a JSON array with prompt, text, token ids and finish reason of each sample."""

    quiet: Quiet = False
    """Print only the text: no headings, no notes."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Sample, "sample", arguments)
    prompts = command.prompt or ("",)
    print_checkpoint_notice(command.run)
    is_single = len(prompts) == command.samples == 1 and not command.json
    stream = _PromptAndText(prompts[0]) if is_single else None
    try:
        texts = sample(
            command.run,
            prompts,
            checkpoint=command.checkpoint,
            allow_special=command.allow_special,
            stream=stream,
            config=command.config(),
        )
    finally:  # also after an interruption
        if stream is not None:
            stream.end()
    if command.json:
        print(json.dumps([_as_json(text, i % command.samples) for i, text in enumerate(texts)], indent=1))
        return
    if stream is None:
        for number, text in enumerate(texts, 1):
            if not command.quiet:
                print(f"--- {number} of {len(texts)} ---")
            print_text(text.prompt + text.text)
            print()
    if not command.quiet:
        for notice in dict.fromkeys(notice for text in texts for notice in text.notices):
            print(f"note: {notice}", file=sys.stderr)


def _as_json(text: GeneratedText, number: int) -> dict[str, object]:
    return {**vars(text), "sample": number}


class _PromptAndText:
    """Stream a text, after its prompt; nothing is printed if the prompt is refused."""

    def __init__(self, prompt: str) -> None:
        self._prompt: str | None = prompt
        self._display = StreamDisplay()

    def __call__(self, _: int, piece: str) -> None:
        if self._prompt is not None:
            self._display.show(self._prompt)
            self._prompt = None
        self._display.show(piece)

    def end(self) -> None:
        if self._prompt is None:
            self._display.end()
