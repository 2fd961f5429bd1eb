"""`normscope completion`: print a completion script for bash, zsh or fish.

The script is generated from the dataclasses that define the options of each command, so it is always up to date.
"""

import ast
import dataclasses
import importlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from normscope.cli import COMMANDS
from normscope.cli.options import read_arguments

Shell = Literal["bash", "zsh", "fish"]

_CLASSES: dict[str, tuple[str, ...]] = {
    "train": ("Train",),
    "resume": ("Resume",),
    "sample": ("Sample",),
    "chat": ("Chat",),
    "runs": ("Runs",),
    "report": ("Report",),
    "replay": ("Replay",),
    "prepare": ("Prepare",),
    "doctor": ("Doctor",),
    "xray": ("XrayCommand", "XrayDiffCommand"),
    "draw": ("DrawScope", "DrawBlock", "DrawModel", "DrawGallery"),
    "lab": ("LabRun", "LabReport", "LabList"),
    "compare": ("Compare",),
    "explain": ("Explain",),
    "completion": ("Completion",),
}
"""The dataclasses that define the options of each command, in its module."""

_WORDS: dict[str, tuple[str, ...]] = {
    "xray": ("diff",),
    "draw": ("scope", "block", "model", "gallery"),
    "lab": ("list", "run", "report"),
    "completion": get_args(Shell),
}
"""Subcommands and other fixed words of a command."""


@dataclass(frozen=True)
class Completion:
    """Print a shell completion script.

    Install it with one of:
      normscope completion bash > ~/.local/share/bash-completion/completions/normscope
      echo 'source <(normscope completion zsh)' >> ~/.zshrc
      normscope completion fish > ~/.config/fish/completions/normscope.fish
    """

    shell: tyro.conf.Positional[Shell]
    """Shell to print the script for."""


@dataclass(frozen=True)
class OptionInfo:
    """An option of a command: its name with dashes, its fixed choices, and its help."""

    name: str
    choices: tuple[str, ...]
    help: str


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Completion, "completion", arguments)
    print({"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[command.shell]())


def command_options(command: str) -> list[OptionInfo]:
    """All options of a command, each once."""
    module = importlib.import_module(COMMANDS[command][0])
    found = {option.name: option for name in _CLASSES[command] for option in _options(getattr(module, name))}
    return [*found.values(), OptionInfo("--help", (), "Show the help of the command")]


def command_words(command: str) -> tuple[str, ...]:
    """The fixed words that can follow a command."""
    if command == "explain":
        from normscope.learning.explain import TOPICS

        return tuple(TOPICS)
    return _WORDS.get(command, ())


def _options(kind: type[Any]) -> Iterator[OptionInfo]:
    """The options that tyro derives from a dataclass: nested dataclasses are flattened, positionals skipped."""
    hints, docs = get_type_hints(kind, include_extras=True), _field_docstrings(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from _options(hint)
        elif tyro.conf.Positional not in get_args(hint)[1:]:
            choices = tuple(dict.fromkeys(_choices(hint)))
            yield OptionInfo(f"--{field.name.replace('_', '-')}", choices, docs.get(field.name, ""))


def _field_docstrings(kind: type[Any]) -> dict[str, str]:
    """The first sentence of the string below each field, by the name of the field."""
    docs: dict[str, str] = {}
    for cls in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
                text = " ".join(ast.literal_eval(after.value).split())
                docs[field.target.id] = text.partition(". ")[0].rstrip(".")
    return docs


def _choices(hint: Any) -> Iterator[str]:
    """The values of the `Literal`s in a type."""
    if get_origin(hint) is Literal:
        yield from (str(value) for value in get_args(hint))
    else:
        for part in get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint):
            yield from _choices(part)


def bash_script() -> str:
    """Complete commands, options and fixed choices; file names everywhere else."""
    cases = []
    for command in COMMANDS:
        options = command_options(command)
        values = [
            f'        {option.name}) COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$cur")); return ;;'
            for option in options
            if option.choices
        ]
        words = " ".join((*command_words(command), *(option.name for option in options)))
        inner = ["      case $prev in", *values, "      esac"] if values else []
        cases.append("\n".join([f"    {command})", *inner, f'      words="{words}" ;;']))
    newline = "\n"
    return f"""\
# bash completion for normscope
_normscope() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} words
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(COMMANDS)} help --help --version" -- "$cur"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{newline.join(cases)}
    help) words="{" ".join(COMMANDS)}" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  case $cur in
    -*) ;;
    *) COMPREPLY+=($(compgen -f -- "$cur")) ;;
  esac
}}
complete -o filenames -F _normscope normscope"""


def zsh_script() -> str:
    """The bash completion, through bashcompinit of zsh."""
    return f"# source this file after compinit\nautoload -U +X bashcompinit && bashcompinit\n{bash_script()}"


def fish_script() -> str:
    """Complete commands and options with their help."""
    lines = ["# fish completion for normscope"]
    for command, (_, summary) in COMMANDS.items():
        lines.append(f"complete -c normscope -n __fish_use_subcommand -a {command} -d {_quote(summary)}")
    for command in COMMANDS:
        seen = f"-n '__fish_seen_subcommand_from {command}'"
        lines += [f"complete -c normscope {seen} -a {_quote(word)}" for word in command_words(command)]
        for option in command_options(command):
            choices = f" -x -a {_quote(' '.join(option.choices))}" if option.choices else ""
            lines.append(f"complete -c normscope {seen} -l {option.name[2:]}{choices} -d {_quote(option.help)}")
    return "\n".join(lines)


def _quote(text: str) -> str:
    """Quote for fish, which escapes only backslash and the quote itself."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
