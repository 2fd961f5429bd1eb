"""`normscope explain`: explain a layer step by step, with numbers."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from normscope.cli.options import Flag, OptionalFloat, OptionalInt, given, option, read_arguments
from normscope.learning.topics import FILES

MIN_WIDTH = 40


@dataclass(frozen=True)
class Explain:
    """Explain a layer step by step: text, the code that runs, the numbers, and the difference from torch.

    Example: normscope explain rmsnorm --input 3,-4,0

    Without a topic, list the topics.
    """

    topic: Annotated[tyro.conf.Positional[str], option("TOPIC", help=f"{', '.join(FILES)}.")] = ""

    input: Annotated[str | None, option("NUMBERS")] = None
    """Input tensor: 3,-4,0 or "[[1, 2, 3], [4, 5, 6]]" or FILE.npy. For embedding: token ids; for init: d_in,d_out."""

    eps: OptionalFloat = None
    """eps of the norm."""

    groups: OptionalInt = None
    """Number of groups (groupnorm)."""

    heads: OptionalInt = None
    """Number of heads (attention, block, residual)."""

    json: Flag = False
    """Print a JSON object: the steps with their code and numbers."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Explain, "explain", _join_input(arguments))
    if not command.topic:
        print(_topics())
        return
    from normscope.learning.catalog import explain
    from normscope.learning.inputs import read_tensor
    from normscope.learning.terminal import WIDTH, render, render_rich

    options = {name: value for name, value in given(command).items() if name in ("eps", "groups", "heads")}
    tensor = None if command.input is None else read_tensor(command.input)
    worked = explain(command.topic, tensor, **options)
    if command.json:
        print(json.dumps(dataclasses.asdict(worked), indent=1, default=lambda value: value.tolist()))
    elif sys.stdout.isatty():
        from normscope.render.console import SafeConsole

        console = SafeConsole(highlight=False)
        width = max(MIN_WIDTH, min(console.width, WIDTH))
        console.print(render_rich(worked, width), soft_wrap=True)
    else:
        print(render(worked))


def _join_input(arguments: Sequence[str]) -> list[str]:
    """Rewrite `--input -3,4` as `--input=-3,4`: a leading minus would look like an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--input":
            joined[-1] = f"--input={argument}"
        else:
            joined.append(argument)
    return joined


def _topics() -> str:
    from normscope.learning.catalog import TOPICS

    width = max(map(len, TOPICS))
    lines = "\n".join(f"  {name:{width}}  {topic.summary}" for name, topic in TOPICS.items())
    return f"Usage: normscope explain TOPIC [--input NUMBERS] ...\n\nTopics:\n{lines}\n\nUse --help for the options."
