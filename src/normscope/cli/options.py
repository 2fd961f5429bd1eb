"""How every command reads its arguments, and how options that may be left out look in the help."""

import contextlib
import io
import sys
from collections.abc import Sequence
from typing import Annotated, TypeVar

import tyro

from normscope.cli.mistakes import mistake

Command = TypeVar("Command")

# What is left out has no value of its own, so the help shows none.
Whole = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
Number = Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint="")]
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


def read_arguments(kind: type[Command], name: str, arguments: Sequence[str], description: str | None = None) -> Command:
    """The command that was meant. What cannot be read is refused; help ends the program, as tyro does it."""
    box = io.StringIO()
    try:
        styled = getattr(sys.stdout, "rich_proxied_file", sys.stdout)  # the help has colors of its own
        with contextlib.redirect_stderr(box), contextlib.redirect_stdout(styled):
            return tyro.cli(
                kind,
                prog=f"normscope {name}",
                description=description,
                args=list(arguments),
                # One word for an option: no --no-compile beside --compile, no "None" as a value, no group before it.
                config=(tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise mistake(box.getvalue()) from None
