"""Argument parsing shared by all commands, and the types of optional options."""

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

# Options without a default value show none in the help.
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint="")]
OptionalStr = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


def read_arguments(kind: type[Command], name: str, arguments: Sequence[str], description: str | None = None) -> Command:
    """Parse the arguments of a command. Raises ConfigError for invalid ones; --help prints and exits."""
    box = io.StringIO()
    try:
        styled = getattr(sys.stdout, "rich_proxied_file", sys.stdout)  # the help has colors
        with contextlib.redirect_stderr(box), contextlib.redirect_stdout(styled), _minimum_help_width():
            return tyro.cli(
                kind,
                prog=f"normscope {name}",
                description=description,
                args=list(arguments),
                # One spelling per option: no --no-compile, no "None" as a value, no group prefix.
                config=(tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise argument_error(box.getvalue()) from None


@contextlib.contextmanager
def _minimum_help_width() -> Iterator[None]:
    """Format the help for at least 40 columns: below 10, tyro loops forever."""
    before, columns = os.environ.get("COLUMNS"), shutil.get_terminal_size().columns
    os.environ["COLUMNS"] = str(max(columns, 40))
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
