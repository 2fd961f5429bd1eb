"""`normscope xray`: show what is wrong in a model; `normscope xray diff`: compare two x-rays."""

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
from normscope.diagnostics.report.diff import render_diff
from normscope.diagnostics.report.page import xray_page
from normscope.diagnostics.report.terminal import print_record, print_text, terminal_width
from normscope.errors import ConfigError, FileError
from normscope.models.presets import PRESETS
from normscope.render.text_columns import glyphs_for
from normscope.storage.files import write_atomically
from normscope.storage.json_files import read_json

EXIT_FINDINGS = 1
"""Exit code if there is a finding of severity error, or a difference."""
_TARGET = tyro.conf.arg(metavar="TARGET")
_FILE = tyro.conf.arg(metavar="FILE", help_behavior_hint="")


@dataclass(frozen=True)
class TargetOptions:
    """Options of the target."""

    checkpoint: Annotated[str, tyro.conf.arg(metavar="STEP")] = "best"
    """Checkpoint of a run: best, last or a step number."""

    depth: OptionalInt = None
    """Depth of a preset; sets width, heads and context as in `normscope train`."""

    sizes: ModelSizeOptions = field(default_factory=ModelSizeOptions)


@dataclass(frozen=True)
class XrayCommand:
    """Show what is wrong in any model: signal and gradients per layer.

    TARGET is one of:
      runs/stories             a run: its best checkpoint, on its validation data
      nanochat, gpt2, llama    a preset at initialization, on random tokens
      path/to/folder           a Hugging Face model (config.json and safetensors; nothing is downloaded)
      package.module:function  a function that returns (model, batch) or (model, batch, loss); the batch is a tensor,
                               a tuple or a dict of arguments, and the loss a function of the output.
                               Also path/to/file.py:function
      xray.json, RUN/xray      a saved x-ray, or a folder of them

    Returns exit code 1 if a finding is an error. `normscope xray diff A B` compares two x-rays.
    """

    target: Annotated[tyro.conf.Positional[str], _TARGET]
    """Model to inspect."""

    html: Annotated[Path | None, _FILE] = None
    """Also write an HTML report."""

    json: Annotated[Path | None, _FILE] = None
    """Save the x-ray as JSON, for `normscope xray FILE` and `normscope xray diff`."""

    source: TargetOptions = field(default_factory=TargetOptions)
    passes: PassOptions = field(default_factory=PassOptions)
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)


@dataclass(frozen=True)
class XrayDiffCommand:
    """Compare two x-rays module by module, and find the first module that diverges.

    Examples:
      normscope xray diff before.json after.json
      normscope xray diff runs/one runs/two
      normscope xray diff runs/one --dtype bfloat16     float32 against bfloat16
      normscope xray diff runs/one --cached

    Returns exit code 1 if they differ by more than rounding.
    """

    one: Annotated[tyro.conf.Positional[str], _TARGET]
    """Saved x-ray, or any target of `normscope xray`."""

    other: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[TARGET]", help_behavior_hint="")] = ""
    """Target to compare with (default: the same target, run with the options below)."""

    tolerance: OptionalFloat = None
    """Relative tolerance (default: half of the digits of the dtype)."""

    source: TargetOptions = field(default_factory=TargetOptions)
    passes: PassOptions = field(default_factory=PassOptions)
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)


def main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == "diff":
        return _diff(read_arguments(XrayDiffCommand, "xray diff", arguments[1:]))
    return _xray(read_arguments(XrayCommand, "xray", arguments))


def _xray(command: XrayCommand) -> int:
    options = _given(command.source, command.passes, command.execution)
    records = _records(command.target, command.source, command.passes, command.execution, options)
    findings = find(records[-1])
    if command.json is not None:
        save_record(records[-1], command.json)
    if command.html is not None:
        write_atomically(command.html, xray_page(records, findings))
    print_record(records[-1], findings)
    if len(records) > 1:
        print(f"last of {len(records)} x-rays in {command.target}; use --html FILE to see all of them")
    for path in (command.json, command.html):
        if path is not None:
            print(f"wrote {path}")
    return EXIT_FINDINGS if any(finding.severity == "error" for finding in findings) else 0


def _diff(command: XrayDiffCommand) -> int:
    execution = command.execution
    if not command.other and execution == ExecutionOptions():
        raise ConfigError(
            f"nothing to compare {command.one} with\n"
            f"fix: add a second target, or --dtype bfloat16, --compile or --cached"
        )
    # A cached pass has no backward pass, so skip it on both sides.
    passes = dataclasses.replace(command.passes, forward_only=command.passes.forward_only or execution.cached)
    before = _records(command.one, command.source, passes, ExecutionOptions(), [])[-1]
    after = _records(command.other or command.one, command.source, passes, execution, _given(execution))[-1]
    difference = compare(before, after, tolerance=command.tolerance)
    print_text(render_diff(difference, width=terminal_width(), glyphs=glyphs_for(sys.stdout.encoding)))
    return EXIT_FINDINGS if difference.diverges else 0


def _records(
    target: str, source: TargetOptions, passes: PassOptions, execution: ExecutionOptions, options: Sequence[str]
) -> list[XrayRecord]:
    """Load saved x-rays, or take one now. Saved ones accept no options."""
    path = Path(target)
    saved = sorted(path.glob("step-*.json")) if path.is_dir() else [path] if path.suffix == ".json" else []
    if not saved:
        return [take_xray(_load_target(target, source, passes.seed), passes, execution)]
    if options:
        raise ConfigError(f"{options[0]} has no effect on the saved x-ray {target}\nfix: remove it")
    return [load_record(one) for one in saved]


def _load_target(target: str, source: TargetOptions, seed: int) -> XrayTarget:
    preset_options = [name for name in _given(source) if name != "--checkpoint"]
    if target in PRESETS:
        return target_from_preset(target, source.depth, parse_model_settings(source.sizes), seed)
    if preset_options:
        raise ConfigError(f"{preset_options[0]} applies only to presets, not to {target}\nfix: remove it")
    if is_function(target):
        return target_from_function(target, seed)
    path = Path(target)
    if not path.is_dir():
        raise _no_target(target)
    return target_from_huggingface(path, seed) if _is_huggingface(path) else target_from_run(path, source.checkpoint)


def _no_target(target: str) -> ConfigError:
    if Path(target).is_file():
        fix = "use a function that returns a model and a batch: path/to/file.py:function"
        if target.endswith(".py"):
            fix = f"add the name of a function that returns a model and a batch: {target}:FUNCTION"
        return ConfigError(f"{target} is a file, not a model\nfix: {fix}")
    close = difflib.get_close_matches(target, [*PRESETS, "diff"], n=1)
    kinds = f"use a run folder, a preset ({', '.join(PRESETS)}), a Hugging Face folder, or package.module:function"
    return ConfigError(f"no such target: {target!r}\nfix: {f'did you mean {close[0]!r}?' if close else kinds}")


def _is_huggingface(folder: Path) -> bool:
    try:
        return "model_type" in read_json(folder / "config.json", dict[str, Any], fix="")
    except FileError:
        return False


def _given(*groups: TargetOptions | PassOptions | ExecutionOptions | ModelSizeOptions) -> list[str]:
    """Names of the options that differ from their defaults."""
    names = []
    for group in groups:
        for own in dataclasses.fields(group):
            value = getattr(group, own.name)
            if isinstance(value, ModelSizeOptions):
                names += _given(value)
            elif value != own.default:
                names.append(f"--{own.name.replace('_', '-')}")
    return names
