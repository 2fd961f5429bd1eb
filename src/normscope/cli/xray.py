"""`normscope xray`: show what is wrong in a model; `normscope xray diff`: compare two x-rays."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from normscope.cli import options as opt
from normscope.cli.sample import print_checkpoint_notice
from normscope.cli.train import ModelSizeOptions
from normscope.inspection.xray_config import XrayConfig
from normscope.storage.files import write_atomically

EXIT_FINDINGS = 1
"""Exit code if there is a finding of severity error, or a difference."""
_TARGET = tyro.conf.arg(metavar="TARGET")
XrayOptions = opt.config_options(
    "XrayOptions",
    "What to run, and how; in `xray diff`, --dtype, --compile and --cached apply to the second side.",
    XrayConfig,
    [field.name for field in dataclasses.fields(XrayConfig) if field.name != "model"],
)


@dataclass(frozen=True)
class XrayCommand:
    """Diagnose a model: activations and gradients per layer.

    TARGET is one of:
      runs/stories             a run: its best checkpoint, on its validation data
      nanochat, gpt2, llama    a preset at initialization, on random tokens
      path/to/model            a Hugging Face folder, or a checkpoint of another tool (see docs/import.md)
      package.module:function  a function that returns (model, batch) or (model, batch, loss); the batch is a tensor,
                               a tuple or a dict of arguments, and the loss a function of the output.
                               Also path/to/file.py:function
      xray.json, RUN/xray      a saved x-ray, or a folder of them

    Returns exit code 1 if a finding is an error. `normscope xray diff A B` compares two x-rays.
    """

    target: Annotated[tyro.conf.Positional[str], _TARGET]
    """Model to inspect."""

    html: opt.OptionalFile = None
    """Also write an HTML report."""

    json: opt.OptionalFile = None
    """Save the x-ray as JSON, for `normscope xray FILE` and `normscope xray diff`."""

    options: XrayOptions = field(default_factory=XrayOptions)  # type: ignore[valid-type]
    preset: ModelSizeOptions = field(default_factory=ModelSizeOptions)


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

    other: Annotated[tyro.conf.Positional[str], opt.option("[TARGET]")] = ""
    """Target to compare with (default: the same target, run with the options below)."""

    tolerance: opt.OptionalFloat = None
    """Relative tolerance (default: half of the digits of the dtype)."""

    json: opt.Flag = False
    """Print the differences as JSON."""

    options: XrayOptions = field(default_factory=XrayOptions)  # type: ignore[valid-type]
    preset: ModelSizeOptions = field(default_factory=ModelSizeOptions)


def main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == "diff":
        return _diff(opt.read_arguments(XrayDiffCommand, "xray diff", arguments[1:]))
    return _xray(opt.read_arguments(XrayCommand, "xray", arguments))


def _settings(command: XrayCommand | XrayDiffCommand) -> dict[str, Any]:
    sizes = {name: value for name, value in opt.given(command.preset).items() if name != "model"}
    return {**opt.given(command.options), "model": opt.join_settings(sizes, command.preset.model)}


def _xray(command: XrayCommand) -> int:
    from normscope.diagnostics.record_json import save_record
    from normscope.diagnostics.report.terminal import print_record
    from normscope.inspection.xray import xray_target

    print_checkpoint_notice(Path(command.target))
    result = xray_target(command.target, **_settings(command))
    if command.json is not None:
        save_record(result.record, command.json)
    if command.html is not None:
        write_atomically(command.html, result.html)
    print_record(result.record, result.findings)
    if len(result.records) > 1:
        print(f"last of {len(result.records)} x-rays in {command.target}; use --html FILE to see all of them")
    for path in (command.json, command.html):
        if path is not None:
            print(f"wrote {path}")
    return EXIT_FINDINGS if any(finding.severity == "error" for finding in result.findings) else 0


def _diff(command: XrayDiffCommand) -> int:
    from normscope.diagnostics.record_json import to_json
    from normscope.diagnostics.report.diff import render_diff
    from normscope.diagnostics.report.terminal import print_text, terminal_width
    from normscope.inspection.xray import xray_diff
    from normscope.render.text_columns import glyphs_for

    difference = xray_diff(command.one, command.other, tolerance=command.tolerance, **_settings(command))
    if command.json:
        content = to_json(dataclasses.asdict(difference))
        print(json.dumps(content, indent=1, default=str, allow_nan=False))
    else:
        print_text(render_diff(difference, width=terminal_width(), glyphs=glyphs_for(sys.stdout.encoding)))
    return EXIT_FINDINGS if difference.diverges else 0
