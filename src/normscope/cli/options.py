"""Argument parsing shared by all commands: tyro, options derived from a config, and option types."""

import contextlib
import dataclasses
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from normscope.checks import did_you_mean
from normscope.cli.argument_errors import argument_error
from normscope.errors import ConfigError

Command = TypeVar("Command")


def option(metavar: str | None = None, *aliases: str, help: str | None = None) -> Any:
    """An option that shows no default value in the help; its help is the docstring unless given here."""
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint="", aliases=list(aliases) or None)


# Options that are optional show no default.
OptionalInt = Annotated[int | None, option("N")]
OptionalFloat = Annotated[float | None, option("X")]
OptionalStr = Annotated[str | None, option("NAME")]
OptionalFile = Annotated[Path | None, option("FILE")]
OptionalFolder = Annotated[Path | None, option("FOLDER")]
Settings = Annotated[tuple[str, ...], option("NAME=VALUE ...")]
Flag = Annotated[bool, option()]
Quiet = Annotated[bool, option(None, "-q")]
# Options with a default, which the help shows.
Int = Annotated[int, tyro.conf.arg(metavar="N")]
Float = Annotated[float, tyro.conf.arg(metavar="X")]
Str = Annotated[str, tyro.conf.arg(metavar="NAME")]
Folder = Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
RunFolder = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
Source = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SOURCE")]
InitFrom = Annotated[Path | None, tyro.conf.arg(name="from", metavar="SOURCE", help_behavior_hint="")]
Checkpoint = Annotated[str, tyro.conf.arg(metavar="STEP")]


def read_arguments(kind: type[Command], name: str, arguments: Sequence[str], description: str | None = None) -> Command:
    """Parse the arguments of a command. Raises ConfigError for invalid ones; --help prints and exits."""
    box = io.StringIO()
    try:
        styled = getattr(sys.stdout, "rich_proxied_file", sys.stdout)  # the help has colors
        with contextlib.redirect_stderr(box), contextlib.redirect_stdout(styled), _minimum_help_width():
            return run_tyro(kind, f"normscope {name}", arguments, description)
    except SystemExit as end:
        if not end.code:
            raise
        raise argument_error(box.getvalue()) from None


Subcommands = Mapping[str, tuple[type, Callable[[Any], int | None]]]
"""The options and the function of each subcommand."""


def run_subcommand(command: str, summary: str, subcommands: Subcommands, arguments: Sequence[str]) -> int:
    """Run the subcommand that the first argument names, or show the list of subcommands."""
    if not arguments:
        raise ConfigError(f"missing subcommand\nfix: use one of: {', '.join(subcommands)}")
    word, *rest = arguments
    if word in ("-h", "--help", "help"):
        width = max(map(len, subcommands))
        lines = [f"  {name:{width}}  {_first_sentence(kind)}" for name, (kind, _) in subcommands.items()]
        hint = f"Use `normscope {command} COMMAND --help` for the options of a command."
        usage = f"Usage: normscope {command} COMMAND [OPTIONS]"
        print("\n".join([usage, "", summary, "", "Commands:", *lines, "", hint]))
        return 0
    if word not in subcommands:
        raise ConfigError(f"unrecognized subcommand {word!r}\nfix: {did_you_mean(word, subcommands)}")
    kind, run = subcommands[word]
    return run(read_arguments(kind, f"{command} {word}", rest)) or 0


def _first_sentence(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n")[0].removesuffix(".")


def run_tyro(kind: type[Command], program: str, arguments: Sequence[str], description: str | None = None) -> Command:
    """Call tyro with one spelling per option: no --no-compile, no "None" as a value, no group prefix."""
    config = (
        tyro.conf.DisallowNone,
        tyro.conf.FlagCreatePairsOff,
        tyro.conf.OmitArgPrefixes,
        tyro.conf.HelptextFromCommentsOff,  # comments are for readers of the code
    )
    return tyro.cli(kind, prog=program, description=description, args=list(arguments), config=config)


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


def config_options(name: str, description: str, config: type, fields: Iterable[str]) -> Any:
    """A dataclass of options for fields of a config: all optional, with the help of the config's docstring."""
    hints, help_of = get_type_hints(config), dict(_field_help(config))
    options = []
    for field in fields:
        kind = next((part for part in get_args(hints[field]) if part is not type(None)), hints[field])
        if get_origin(hints[field]) is Literal:
            kind = hints[field]
        hint = tyro.conf.arg(metavar=_metavar(kind), help=help_of[field], help_behavior_hint="")
        default, type_ = (False, bool) if kind is bool else (None, kind | None)
        options.append((field, Annotated[type_, hint], dataclasses.field(default=default)))
    made = dataclasses.make_dataclass(name, options, frozen=True)
    made.__doc__ = description
    return made


def _field_help(config: type) -> Iterator[tuple[str, str]]:
    """The descriptions in the Args section of a docstring, by field."""
    section = (config.__doc__ or "").partition("Args:\n")[2]
    for name, text in re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", section, re.MULTILINE):
        yield name, " ".join(text.split()).replace("`context`", "--context")


def _metavar(kind: Any) -> str | None:
    if get_origin(kind) is Literal:
        return f"{{{','.join(get_args(kind))}}}"
    return {int: "N", float: "X", str: "NAME"}.get(kind)


def given(options: Any) -> dict[str, Any]:
    """The options that differ from their defaults, by name; option groups are flattened.

    >>> @dataclasses.dataclass
    ... class Sizes:
    ...     width: int = 8
    ...     depth: int = 2
    >>> given(Sizes(depth=4))
    {'depth': 4}
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            found |= given(value)
        elif value != field.default:
            found[field.name] = value
    return found


def option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Parse the NAME=VALUE settings of --model.

    >>> parse_settings(["norm=layer", "bias=true", "logit-cap=20"])
    {'norm': 'layer', 'bias': True, 'logit_cap': 20}
    """
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--model expects NAME=VALUE, but got {text!r}\nfix: --model norm=layer")
        name = name.replace("-", "_")
        if name in settings:
            raise ConfigError(f"{name} is given twice in --model\nfix: give it once")
        settings[name] = _parse_value(value)
    return settings


def join_settings(options: Mapping[str, Any], texts: Iterable[str]) -> dict[str, Any]:
    """Model settings given as options of their own, and those of --model; none may be given as both.

    >>> join_settings({"width": 8}, ["norm=layer"])
    {'width': 8, 'norm': 'layer'}
    """
    settings = parse_settings(texts)
    if twice := options.keys() & settings.keys():
        name = min(twice)
        raise ConfigError(f"{name} is given twice: as {option_name(name)} and in --model\nfix: give it once")
    return {**options, **settings}


def _parse_value(text: str) -> Any:
    """Parse a boolean, None, a number or a string."""
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
