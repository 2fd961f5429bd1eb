"""Options that `sample` and `chat` share."""

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro

from normscope.cli.options import Checkpoint, Float, Int, OptionalFloat, OptionalInt, RunFolder, option
from normscope.generate.config import GenerationConfig
from normscope.generate.decoder import WeightFormat
from normscope.runs.run import Run
from normscope.runs.sample import unfinished_checkpoint_notice


@dataclass(frozen=True)
class GenerationOptions:
    """The model, and how to sample from it."""

    run: RunFolder
    """Run folder."""

    checkpoint: Checkpoint = "best"
    """Checkpoint: best, last or a step number."""

    max_new_tokens: Annotated[int, tyro.conf.arg(metavar="N", aliases=["--tokens"])] = 256
    """Maximum number of tokens to generate."""

    temperature: Float = 0.8
    """Sampling temperature; 0 for greedy decoding."""

    top_k: OptionalInt = None
    """Sample from the N most likely tokens."""

    top_p: OptionalFloat = None
    """Sample from the most likely tokens with this total probability (nucleus sampling)."""

    min_p: OptionalFloat = None
    """Drop tokens less likely than this fraction of the most likely one."""

    repetition_penalty: Float = 1.0
    """Penalize tokens that already occur (1 disables the penalty)."""

    stop: Annotated[tuple[str, ...], option("TEXT ...")] = ()
    r"""Stop strings: end the text before the first match. \n is a newline."""

    seed: Int = 0
    """Random seed."""

    weights: WeightFormat = "float32"
    """Weight format: bfloat16 and int8 decode large models faster, from rounded weights."""

    def config(self) -> GenerationConfig:
        same = {field.name for field in fields(GenerationConfig)} & {field.name for field in fields(self)}
        stop = tuple(text.replace("\\n", "\n") for text in self.stop)
        return GenerationConfig(**{name: getattr(self, name) for name in same} | {"stop": stop})


def print_checkpoint_notice(run: Path) -> None:
    """Print a note if an incomplete checkpoint is ignored."""
    notice = unfinished_checkpoint_notice(Run.open(run))
    if notice is not None:
        print(f"note: {notice}", file=sys.stderr)
