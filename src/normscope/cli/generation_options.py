"""What `sample` and `chat` share: which model, and how its tokens are chosen."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from normscope.checks import check_positive_int
from normscope.cli.options import OptionalFloat, OptionalInt
from normscope.data.tokenizers import Tokenizer
from normscope.generate.decoder import WeightFormat
from normscope.generate.sampling import SamplingConfig
from normscope.generate.text import TextSettings
from normscope.models.gpt import GPT
from normscope.render.formatting import printable
from normscope.render.word_wrap import WordWrap
from normscope.runs.load_run import load_run
from normscope.runs.lock import is_locked
from normscope.runs.run import Run


@dataclass(frozen=True)
class GenerationOptions:
    """Which run's model writes, and how."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run's folder."""

    checkpoint: Annotated[str, tyro.conf.arg(metavar="STEP")] = "best"
    """best, last, or the number of a step."""

    tokens: Annotated[int, tyro.conf.arg(metavar="N")] = 256
    """How many tokens a text gets at most."""

    temperature: Annotated[float, tyro.conf.arg(metavar="X")] = 0.8
    """Below 1 likely tokens become likelier; 0 always takes the likeliest."""

    top_k: OptionalInt = None
    """Choose among so many of the likeliest tokens."""

    top_p: OptionalFloat = None
    """Choose among the likeliest that together have this probability."""

    min_p: OptionalFloat = None
    """Choose among those of at least this share of the likeliest one's probability."""

    repetition_penalty: Annotated[float, tyro.conf.arg(metavar="X")] = 1.0
    """Above 1 what is there already becomes less likely."""

    stop: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT ...", help_behavior_hint="")] = ()
    r"""A text ends before any of these; \n is a line break."""

    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Another seed gives other texts."""

    weights: WeightFormat = "float32"
    """Rounded to bfloat16 or int8 the weights of a large model are read in less time."""

    def settings(self) -> TextSettings:
        check_positive_int(tokens=self.tokens)
        return TextSettings(
            sampling=SamplingConfig(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                repetition_penalty=self.repetition_penalty,
            ),
            max_new_tokens=self.tokens,
            stop=tuple(text.replace("\\n", "\n") for text in self.stop),
            seed=self.seed,
            weights=self.weights,
        )

    def load(self) -> tuple[GPT, Tokenizer]:
        warn_unfinished_checkpoint(Run.open(self.run))
        return load_run(self.run, self.checkpoint)


def warn_unfinished_checkpoint(run: Run) -> None:
    """Say that a later checkpoint than the last whole one is passed over, unless it is being written right now."""
    steps = run.checkpoints.unfinished()
    if steps and not is_locked(run.folder):
        which = " and ".join(map(str, steps))
        print(f"note: the checkpoint of step {which} is not whole (no manifest), and is passed over", file=sys.stderr)


class StreamDisplay:
    """Prints what a model writes, piece by piece: wrapped between words on a terminal, as it is into a file or pipe."""

    def __init__(self) -> None:
        self._wrap = WordWrap(shutil.get_terminal_size().columns) if sys.stdout.isatty() else None

    def show(self, piece: str) -> None:
        text = shown(piece)
        print(text if self._wrap is None else self._wrap.feed(text), end="", flush=True)

    def flush(self) -> None:
        """Print what was held back."""
        print("" if self._wrap is None else self._wrap.flush(), end="", flush=True)


def print_text(text: str) -> None:
    """Print a text that is there already."""
    display = StreamDisplay()
    display.show(text)
    display.flush()
    print()


def shown(text: str) -> str:
    """What a model wrote, fit to be printed: a terminal would obey the control characters in it, a file keeps them."""
    return printable(text, keep="\n\t") if sys.stdout.isatty() else text
