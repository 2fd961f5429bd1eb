"""`normscope explain`: a layer worked through step by step, on numbers that can be checked."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from normscope.cli.options import OptionalFloat, OptionalInt, read_arguments
from normscope.learning.explain import TOPICS, explanation
from normscope.learning.terminal import WIDTH, render, render_rich
from normscope.learning.user_numbers import read_tensor

NARROWEST = 40


@dataclass(frozen=True)
class Explain:
    """Work a layer through, step by step: words, the code that runs, the numbers, and how far they are from torch's.

    For instance: normscope explain rmsnorm --input 3,-4,0

    Without a topic they are listed.
    """

    topic: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TOPIC", help_behavior_hint="")] = ""
    """layernorm, rmsnorm, batchnorm, instancenorm, groupnorm, powernorm, linear, embedding, init, mlp, relu2,
    attention, block, residual or requires-grad."""

    input: Annotated[str | None, tyro.conf.arg(metavar="NUMBERS", help_behavior_hint="")] = None
    """Your own numbers instead of the example: 3,-4,0 or "[[1, 2, 3], [4, 5, 6]]" or FILE.npy. For embedding they are
    tokens, for init the sizes d_in,d_out."""

    eps: OptionalFloat = None
    """What norms add under the root."""

    groups: OptionalInt = None
    """How many groups of channels, for groupnorm."""

    heads: OptionalInt = None
    """How many heads, for attention, block and residual."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Explain, "explain", _joined(arguments))
    if not command.topic:
        print(_topics())
        return
    settings = {name: getattr(command, name) for name in ("eps", "groups", "heads")}
    options = {name: value for name, value in settings.items() if value is not None}
    tensor = None if command.input is None else read_tensor(command.input)
    worked = explanation(command.topic, tensor, **options)
    if sys.stdout.isatty():
        from normscope.render.console import SafeConsole

        console = SafeConsole(highlight=False)
        width = max(NARROWEST, min(console.width, WIDTH))
        console.print(render_rich(worked, width), soft_wrap=True)
    else:
        print(render(worked))


def _joined(arguments: Sequence[str]) -> list[str]:
    """`--input -3,4` as `--input=-3,4`: numbers may begin with a minus, which else would look like an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--input":
            joined[-1] = f"--input={argument}"
        else:
            joined.append(argument)
    return joined


def _topics() -> str:
    width = max(map(len, TOPICS))
    lines = "\n".join(f"  {name:{width}}  {topic.words}" for name, topic in TOPICS.items())
    return f"usage: normscope explain TOPIC [--input NUMBERS] ...\n\ntopics:\n{lines}\n\n`--help` tells the options."
