"""`normscope sample`: generate text from a trained model."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro

from normscope.cli import options as opt
from normscope.generate.config import GenerationConfig, WeightFormat


@dataclass(frozen=True)
class GenerationOptions:
    """The model, and how to sample from it: also the options of `chat`."""

    source: opt.Source
    """Run folder, Hugging Face folder, or a checkpoint of another tool (see docs/import.md)."""

    checkpoint: opt.Checkpoint = "best"
    """Checkpoint of a run: best, last or a step number."""

    max_new_tokens: Annotated[int, tyro.conf.arg(metavar="N", aliases=["--tokens"])] = 256
    """Maximum number of tokens to generate."""

    temperature: opt.Float = 0.8
    """Sampling temperature; 0 for greedy decoding."""

    top_k: opt.OptionalInt = None
    """Sample from the N most likely tokens."""

    top_p: opt.OptionalFloat = None
    """Sample from the most likely tokens with this total probability (nucleus sampling)."""

    min_p: opt.OptionalFloat = None
    """Drop tokens less likely than this fraction of the most likely one."""

    repetition_penalty: opt.Float = 1.0
    """Penalize tokens that already occur (1 disables the penalty)."""

    stop: Annotated[tuple[str, ...], opt.option("TEXT ...")] = ()
    r"""Stop strings: end the text before the first match. \n is a newline."""

    seed: opt.Int = 0
    """Random seed."""

    weights: WeightFormat = "float32"
    """Weight format: bfloat16 and int8 decode large models faster, from rounded weights."""

    def config(self) -> GenerationConfig:
        same = {field.name for field in fields(GenerationConfig)} & {field.name for field in fields(self)}
        stop = tuple(text.replace("\\n", "\n") for text in self.stop)
        return GenerationConfig(**{name: getattr(self, name) for name in same} | {"stop": stop})


@dataclass(frozen=True)
class Sample(GenerationOptions):
    """Generate text from a trained model.

    Example: normscope sample runs/stories --prompt "Once upon a time" -n 3
    """

    prompt: Annotated[tuple[str, ...], opt.option("TEXT ...")] = ("",)
    """One or more prompts. Without one, start a new document."""

    samples: Annotated[int, tyro.conf.arg(metavar="N", aliases=["-n"])] = 1
    """Number of samples per prompt."""

    allow_special: opt.Flag = False
    """Parse special tokens such as <|endoftext|> in prompts."""

    json: opt.Flag = False
    """Print a JSON array with prompt, text, token ids and finish reason of each sample."""

    quiet: opt.Quiet = False
    """Print only the text: no headings, no notes."""


def main(arguments: Sequence[str]) -> None:
    command = opt.read_arguments(Sample, "sample", arguments)
    from normscope.render.streaming import StreamDisplay, print_text
    from normscope.runs.sample import sample

    prompts = command.prompt or ("",)
    print_checkpoint_notice(command.source)
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
            command.source,
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


def print_checkpoint_notice(run: Path) -> None:
    """Print a note if an incomplete checkpoint of a run is ignored."""
    from normscope.runs.run import Run, is_run
    from normscope.runs.sample import unfinished_checkpoint_notice

    if not is_run(run):  # a checkpoint of another tool
        return
    notice = unfinished_checkpoint_notice(Run.open(run))
    if notice is not None:
        print(f"note: {notice}", file=sys.stderr)
