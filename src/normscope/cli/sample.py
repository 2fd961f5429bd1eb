"""`normscope sample`: let a trained model write."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from normscope.cli.generation_options import GenerationOptions, StreamDisplay, print_text
from normscope.cli.options import Flag, read_arguments
from normscope.generate.text import TextGeneration


@dataclass(frozen=True)
class Sample(GenerationOptions):
    """Let a trained model write: from nothing, or on from a prompt.

    For instance: normscope sample runs/stories --prompt "Once upon a time" -n 3
    """

    prompt: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT ...", help_behavior_hint="")] = ("",)
    """What the texts begin with; several prompts are written at once."""

    samples: Annotated[int, tyro.conf.arg(metavar="N", aliases=["-n"])] = 1
    """How many texts for each prompt."""

    allow_special: Flag = False
    """Let <|endoftext|> and the names of other special tokens in a prompt stand for these tokens."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Sample, "sample", arguments)
    prompts = command.prompt or ("",)
    settings = command.settings()
    model, tokenizer = command.load()
    encoded = tokenizer.encode_many(prompts, allow_special=command.allow_special)
    writer = TextGeneration(model, tokenizer, encoded, settings, samples=command.samples)
    rows = writer.generation.sequences
    if len(rows) == 1:
        _show_as_it_comes(prompts[0], writer)
    else:
        for _ in writer:
            pass
        for number, (row, text) in enumerate(zip(rows, writer.texts, strict=True), 1):
            print(f"--- {number} of {len(rows)} ---")
            print_text(prompts[row.prompt] + text)
            print()
    for notice in dict.fromkeys(notice for row in rows for notice in row.notices):
        print(f"note: {notice}", file=sys.stderr)


def _show_as_it_comes(prompt: str, writer: TextGeneration) -> None:
    display = StreamDisplay()
    display.show(prompt)
    try:
        for _, piece in writer:
            display.show(piece)
    finally:  # also what was written before an interruption
        display.flush()
    print()
