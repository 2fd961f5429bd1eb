"""Options that `sample` and `chat` share, and the display of streamed text."""

import shutil
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro

from normscope.checks import check_positive_int
from normscope.cli.options import OptionalFloat, OptionalInt
from normscope.data.tokenizers import Tokenizer
from normscope.generate.config import GenerationConfig
from normscope.generate.decoder import WeightFormat
from normscope.models.gpt import GPT
from normscope.render.formatting import printable
from normscope.render.word_wrap import WordWrap
from normscope.runs.load_run import load_run
from normscope.runs.lock import is_locked
from normscope.runs.run import Run


@dataclass(frozen=True)
class GenerationOptions:
    """The model, and how to sample from it."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder."""

    checkpoint: Annotated[str, tyro.conf.arg(metavar="STEP")] = "best"
    """Checkpoint: best, last or a step number."""

    tokens: Annotated[int, tyro.conf.arg(metavar="N")] = 256
    """Maximum number of tokens to generate."""

    temperature: Annotated[float, tyro.conf.arg(metavar="X")] = 0.8
    """Sampling temperature; 0 for greedy decoding."""

    top_k: OptionalInt = None
    """Sample from the N most likely tokens."""

    top_p: OptionalFloat = None
    """Sample from the most likely tokens with this total probability (nucleus sampling)."""

    min_p: OptionalFloat = None
    """Drop tokens less likely than this fraction of the most likely one."""

    repetition_penalty: Annotated[float, tyro.conf.arg(metavar="X")] = 1.0
    """Penalize tokens that already occur (1 disables the penalty)."""

    stop: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT ...", help_behavior_hint="")] = ()
    r"""Stop strings: end the text before the first match. \n is a newline."""

    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Random seed."""

    weights: WeightFormat = "float32"
    """Weight format: bfloat16 and int8 decode large models faster, from rounded weights."""

    def config(self) -> GenerationConfig:
        check_positive_int(tokens=self.tokens)
        same = {field.name for field in fields(GenerationConfig)} & {field.name for field in fields(self)}
        settings = {name: getattr(self, name) for name in same}
        stop = tuple(text.replace("\\n", "\n") for text in self.stop)
        return GenerationConfig(**{**settings, "max_new_tokens": self.tokens, "stop": stop})

    def load(self) -> tuple[GPT, Tokenizer]:
        warn_unfinished_checkpoint(Run.open(self.run))
        return load_run(self.run, self.checkpoint)


def warn_unfinished_checkpoint(run: Run) -> None:
    """Warn that an incomplete checkpoint is ignored, unless a training process is writing it."""
    steps = run.checkpoints.unfinished()
    if steps and not is_locked(run.folder):
        which = " and ".join(map(str, steps))
        print(f"note: ignoring the incomplete checkpoint of step {which} (no manifest)", file=sys.stderr)


class StreamDisplay:
    """Print streamed text: wrapped at word boundaries on a terminal, unchanged to a file or pipe."""

    def __init__(self) -> None:
        self._wrap = WordWrap(shutil.get_terminal_size().columns) if sys.stdout.isatty() else None

    def show(self, piece: str) -> None:
        text = shown(piece)
        print(text if self._wrap is None else self._wrap.feed(text), end="", flush=True)

    def flush(self) -> None:
        """Print the text held back for word wrapping."""
        print("" if self._wrap is None else self._wrap.flush(), end="", flush=True)


def print_text(text: str) -> None:
    """Print a complete text."""
    display = StreamDisplay()
    display.show(text)
    display.flush()
    print()


def shown(text: str) -> str:
    """Generated text, with control characters replaced if it goes to a terminal."""
    return printable(text, keep="\n\t") if sys.stdout.isatty() else text
