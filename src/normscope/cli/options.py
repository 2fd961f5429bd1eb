"""How every command reads its arguments, and how options that may be left out look in the help."""

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeVar

import tyro

from normscope.cli.argument_errors import argument_error

Command = TypeVar("Command")

# What is left out has no value of its own, so the help shows none.
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint="")]
OptionalStr = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


def read_arguments(kind: type[Command], name: str, arguments: Sequence[str], description: str | None = None) -> Command:
    """The command that was meant. What cannot be read is refused; help ends the program, as tyro does it."""
    box = io.StringIO()
    try:
        styled = getattr(sys.stdout, "rich_proxied_file", sys.stdout)  # the help has colors of its own
        with contextlib.redirect_stderr(box), contextlib.redirect_stdout(styled), _room_for_help():
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
        raise argument_error(box.getvalue()) from None


@contextlib.contextmanager
def _room_for_help() -> Iterator[None]:
    """Let tyro lay its help out for 40 columns at least: in fewer than 10 it never comes to an end."""
    before, columns = os.environ.get("COLUMNS"), shutil.get_terminal_size().columns
    os.environ["COLUMNS"] = str(max(columns, 40))
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
