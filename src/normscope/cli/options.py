"""How every command reads its arguments, and how options that may be left out look in the help."""

from collections.abc import Sequence
from typing import Annotated, TypeVar

import tyro

Command = TypeVar("Command")

# What is left out has no value of its own, so the help shows none.
Whole = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
Number = Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint="")]
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


def read_arguments(kind: type[Command], name: str, arguments: Sequence[str]) -> Command:
    """The command that was meant; help and what cannot be read end the program, as tyro does it."""
    return tyro.cli(
        kind,
        prog=f"normscope {name}",
        args=list(arguments),
        # One word for each option: no --no-compile beside --compile, no "None" as a value, no group in front of it.
        config=(tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
    )
