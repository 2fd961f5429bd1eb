"""`normscope sample`: generate text from a trained model."""

import json
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
    """Generate text from a trained model.

    Example: normscope sample runs/stories --prompt "Once upon a time" -n 3
    """

    prompt: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT ...", help_behavior_hint="")] = ("",)
    """One or more prompts. Without one, start a new document."""

    samples: Annotated[int, tyro.conf.arg(metavar="N", aliases=["-n"])] = 1
    """Number of samples per prompt."""

    allow_special: Flag = False
    """Parse special tokens such as <|endoftext|> in prompts."""

    json: Flag = False
    """Print a JSON array with prompt, text, token ids and finish reason of each sample."""

    quiet: Annotated[bool, tyro.conf.arg(aliases=["-q"], help_behavior_hint="")] = False
    """Print only the text: no headings, no notes."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Sample, "sample", arguments)
    prompts = command.prompt or ("",)
    config = command.config()
    model, tokenizer = command.load()
    encoded = tokenizer.encode_many(prompts, allow_special=command.allow_special)
    generation = TextGeneration(model, tokenizer, encoded, config)
    sequences = generation.generation.sequences
    if command.json:
        _print_json(prompts, generation)
        return
    if len(sequences) == 1:
        _stream(prompts[0], generation)
    else:
        _finish(generation)
        for number, (sequence, text) in enumerate(zip(sequences, generation.texts, strict=True), 1):
            if not command.quiet:
                print(f"--- {number} of {len(sequences)} ---")
            print_text(prompts[sequence.prompt] + text)
            print()
    if not command.quiet:
        for notice in dict.fromkeys(notice for sequence in sequences for notice in sequence.notices):
            print(f"note: {notice}", file=sys.stderr)


def _finish(generation: TextGeneration) -> None:
    for _ in generation:
        pass


def _print_json(prompts: Sequence[str], generation: TextGeneration) -> None:
    _finish(generation)
    samples = [
        {
            "prompt": prompts[sequence.prompt],
            "sample": sequence.sample,
            "text": text,
            "tokens": sequence.generated_tokens,
            "finish_reason": sequence.finish_reason,
            "notices": sequence.notices,
        }
        for sequence, text in zip(generation.generation.sequences, generation.texts, strict=True)
    ]
    print(json.dumps(samples, indent=1))


def _stream(prompt: str, generation: TextGeneration) -> None:
    display = StreamDisplay()
    display.show(prompt)
    try:
        for _, piece in generation:
            display.show(piece)
    finally:  # also after an interruption
        display.flush()
    print()
