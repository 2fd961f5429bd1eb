"""`normscope sample`: generate text from a trained model."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from normscope.cli.generation import GenerationOptions, print_checkpoint_notice
from normscope.cli.options import Flag, Quiet, option, read_arguments
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
    display = StreamDisplay()
    shown: list[str] = []

    def stream(_: int, piece: str) -> None:
        """Show a text as it is generated, after its prompt: nothing is printed if the prompt is refused."""
        for text in (piece,) if shown else (prompts[0], piece):
            display.show(text)
            shown.append(text)

    try:
        texts = sample(
            command.run,
            prompts,
            checkpoint=command.checkpoint,
            allow_special=command.allow_special,
            stream=stream if is_single else None,
            config=command.config(),
        )
    finally:  # also after an interruption
        if shown:
            display.end()
    if command.json:
        print(json.dumps([{**vars(text), "sample": i % command.samples} for i, text in enumerate(texts)], indent=1))
        return
    if not is_single:
        for number, text in enumerate(texts, 1):
            if not command.quiet:
                print(f"--- {number} of {len(texts)} ---")
            print_text(text.prompt + text.text)
            print()
    if not command.quiet:
        for notice in dict.fromkeys(notice for text in texts for notice in text.notices):
            print(f"note: {notice}", file=sys.stderr)
