"""`normscope xray`: look into a model, in the terminal or as a page; `normscope xray diff`: compare two looks."""

import dataclasses
import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from normscope.cli.options import OptionalFloat, OptionalInt, read_arguments
from normscope.cli.train import ModelSizeOptions, parse_model_settings
from normscope.cli.xray_function import is_function
from normscope.cli.xray_run import ExecutionOptions, PassOptions, take_xray
from normscope.cli.xray_target import (
    XrayTarget,
    target_from_function,
    target_from_huggingface,
    target_from_preset,
    target_from_run,
)
from normscope.diagnostics.diff.diff import compare
from normscope.diagnostics.findings import find
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.record_json import load_record, save_record
from normscope.diagnostics.report.diff import render_difference
from normscope.diagnostics.report.page import render_page
from normscope.diagnostics.report.print import print_record, print_text, width
from normscope.diagnostics.report.text_columns import glyphs_for
from normscope.errors import ConfigError, FileError
from normscope.models.presets import PRESETS
from normscope.storage.files import write_atomically
from normscope.storage.json_files import read_json

FAULTY = 1
"""The exit code if an error was found, or a difference."""
_TARGET = tyro.conf.arg(metavar="TARGET")
_FILE = tyro.conf.arg(metavar="FILE", help_behavior_hint="")


@dataclass(frozen=True)
class TargetOptions:
    """What of the target is taken."""

    checkpoint: Annotated[str, tyro.conf.arg(metavar="STEP")] = "last"
    """Of a run: last, best, or the number of a step."""

    depth: OptionalInt = None
    """Of a preset: how many blocks. Width, heads and context follow from it, as in `normscope train`."""

    sizes: ModelSizeOptions = field(default_factory=ModelSizeOptions)


@dataclass(frozen=True)
class XrayCommand:
    """Look into a model: the signal in every layer, forward and backward, and what is wrong with it.

    TARGET is one of these:
      runs/stories             a run: its last checkpoint, on its own validation text
      nanochat, gpt2, llama    a preset, as `normscope train --preset` begins with it, on random tokens
      path/to/folder           a Hugging Face model: config.json and safetensors; nothing is downloaded
      package.module:function  or path/to/file.py:function, which returns a model and a batch (a tensor, or a tuple or
                               a dictionary of arguments), and a loss, a function of the output, if there is one
      look.json, RUN/xray      an x-ray that was saved, or a folder of them

    Ends with exit code 1 if a finding is an error. `normscope xray diff A B` compares two.
    """

    target: Annotated[tyro.conf.Positional[str], _TARGET]
    """What to look into."""

    html: Annotated[Path | None, _FILE] = None
    """Write a page for a browser too."""

    json: Annotated[Path | None, _FILE] = None
    """Save the x-ray, for `normscope xray FILE` and `normscope xray diff`."""

    source: TargetOptions = field(default_factory=TargetOptions)
    passes: PassOptions = field(default_factory=PassOptions)
    form: ExecutionOptions = field(default_factory=ExecutionOptions)


@dataclass(frozen=True)
class XrayDiffCommand:
    """Compare two x-rays, module by module, and name the module in which a difference begins.

    For instance:
      normscope xray diff before.json after.json
      normscope xray diff runs/one runs/two
      normscope xray diff runs/one --dtype bfloat16     with itself, in another form
      normscope xray diff runs/one --cached

    Ends with exit code 1 if they differ by more than rounding.
    """

    one: Annotated[tyro.conf.Positional[str], _TARGET]
    """A saved x-ray, or whatever `normscope xray` takes."""

    other: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[TARGET]", help_behavior_hint="")] = ""
    """Another one; the same in another form if it is left out."""

    tolerance: OptionalFloat = None
    """How far apart counts as rounding, as a share of the size; half of the digits of the type unless told."""

    source: TargetOptions = field(default_factory=TargetOptions)
    passes: PassOptions = field(default_factory=PassOptions)
    form: ExecutionOptions = field(default_factory=ExecutionOptions)


def main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == "diff":
        return _diff(read_arguments(XrayDiffCommand, "xray diff", arguments[1:]))
    return _look(read_arguments(XrayCommand, "xray", arguments))


def _look(command: XrayCommand) -> int:
    options = _given(command.source, command.passes, command.form)
    records = _records(command.target, command.source, command.passes, command.form, options)
    findings = find(records[-1])
    if command.json is not None:
        save_record(records[-1], command.json)
    if command.html is not None:
        write_atomically(command.html, render_page(records, findings))
    print_record(records[-1], findings)
    if len(records) > 1:
        print(f"the last of {len(records)} x-rays in {command.target}; --html FILE shows how it went")
    for path in (command.json, command.html):
        if path is not None:
            print(f"wrote {path}")
    return FAULTY if any(finding.severity == "error" for finding in findings) else 0


def _diff(command: XrayDiffCommand) -> int:
    form = command.form
    if not command.other and form == ExecutionOptions():
        raise ConfigError(
            f"there is nothing to compare {command.one} with\n"
            f"fix: name another target, or another form: --dtype bfloat16, --compile or --cached"
        )
    # What has no way back has no use for the other's.
    passes = dataclasses.replace(command.passes, forward_only=command.passes.forward_only or form.cached)
    before = _records(command.one, command.source, passes, ExecutionOptions(), [])[-1]
    after = _records(command.other or command.one, command.source, passes, form, _given(form))[-1]
    difference = compare(before, after, tolerance=command.tolerance)
    print_text(render_difference(difference, width=width(), glyphs=glyphs_for(sys.stdout.encoding)))
    return FAULTY if difference.diverges else 0


def _records(
    target: str, source: TargetOptions, passes: PassOptions, form: ExecutionOptions, options: Sequence[str]
) -> list[XrayRecord]:
    """The x-rays that are saved under a name, for which there are no options; or the one that is taken now."""
    path = Path(target)
    saved = sorted(path.glob("step-*.json")) if path.is_dir() else [path] if path.suffix == ".json" else []
    if not saved:
        return [take_xray(_subject(target, source, passes.seed), passes, form)]
    if options:
        raise ConfigError(f"{target} was taken already, and {options[0]} would change nothing\nfix: leave it out")
    return [load_record(one) for one in saved]


def _subject(target: str, source: TargetOptions, seed: int) -> XrayTarget:
    of_presets = [name for name in _given(source) if name != "--checkpoint"]
    if target in PRESETS:
        return target_from_preset(target, source.depth, parse_model_settings(source.sizes), seed)
    if of_presets:
        raise ConfigError(f"{of_presets[0]} is for presets, and {target} is as it is\nfix: leave it out")
    if is_function(target):
        return target_from_function(target, seed)
    path = Path(target)
    if not path.is_dir():
        raise _no_target(target)
    return target_from_huggingface(path, seed) if _is_huggingface(path) else target_from_run(path, source.checkpoint)


def _no_target(target: str) -> ConfigError:
    if Path(target).is_file():
        fix = "name a function of yours that returns a model and a batch: path/to/file.py:function"
        if target.endswith(".py"):
            fix = f"name a function in it that returns a model and a batch: {target}:FUNCTION"
        return ConfigError(f"{target} is a file, and an x-ray is taken of a model\nfix: {fix}")
    close = difflib.get_close_matches(target, [*PRESETS, "diff"], n=1)
    kinds = f"a run's folder, a preset ({', '.join(PRESETS)}), a Hugging Face folder, or package.module:function"
    return ConfigError(f"there is no {target!r}\nfix: {f'did you mean {close[0]!r}?' if close else kinds}")


def _is_huggingface(folder: Path) -> bool:
    try:
        return "model_type" in read_json(folder / "config.json", dict[str, Any], fix="")
    except FileError:
        return False


def _given(*groups: TargetOptions | PassOptions | ExecutionOptions | ModelSizeOptions) -> list[str]:
    """The names of the options that were given."""
    names = []
    for group in groups:
        for own in dataclasses.fields(group):
            value = getattr(group, own.name)
            if isinstance(value, ModelSizeOptions):
                names += _given(value)
            elif value != own.default:
                names.append(f"--{own.name.replace('_', '-')}")
    return names
