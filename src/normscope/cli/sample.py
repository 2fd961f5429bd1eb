"""`normscope sample`: let a trained model write."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from normscope.cli.writing import Writing
from normscope.generate.text import generate_text


@dataclass(frozen=True)
class Sample(Writing):
    """Let a trained model write: from nothing, or on from a prompt.

    For instance: normscope sample runs/stories --prompt "Once upon a time" -n 3
    """

    prompt: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT ...")] = ("",)
    """What the texts begin with; several prompts are written at once."""

    samples: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1
    """How many texts for each prompt."""


def main(arguments: Sequence[str]) -> None:
    command = tyro.cli(Sample, prog="normscope sample", args=list(arguments))
    model, tokenizer = command.load()
    settings = command.settings()
    alone = len(command.prompt) * command.samples == 1
    if alone:  # as it is written; of several, each when it is whole
        print(command.prompt[0], end="", flush=True)
    texts = generate_text(
        model,
        tokenizer,
        command.prompt,
        samples=command.samples,
        max_new_tokens=settings.max_new_tokens,
        temperature=command.temperature,
        top_k=command.top_k,
        top_p=command.top_p,
        min_p=command.min_p,
        repetition_penalty=command.repetition_penalty,
        seed=settings.seed,
        stop=settings.stop,
        weights=settings.weights,
        stream=(lambda _, piece: print(piece, end="", flush=True)) if alone else None,
    )
    for number, text in enumerate(texts, 1):
        if alone:
            print()
        else:
            print(f"--- {number} of {len(texts)} ---\n{text.prompt}{text.text}\n")
    for notice in dict.fromkeys(notice for text in texts for notice in text.notices):
        print(f"note: {notice}", file=sys.stderr)
