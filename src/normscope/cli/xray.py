"""`normscope xray`: show what is wrong in a model."""

import dataclasses
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
"""Exit code if there is a finding of severity error."""
TARGET = tyro.conf.arg(metavar="TARGET")
XrayOptions = opt.config_options(
    "XrayOptions",
    "What to run, and how; in `diff`, --dtype, --compile and --cached apply to the second side.",
    XrayConfig,
    [field.name for field in dataclasses.fields(XrayConfig) if field.name != "model"],
)


@dataclass(frozen=True)
class Xray:
    """Diagnose a model: activations and gradients per layer.

    TARGET is one of:
      runs/stories             a run: its best checkpoint, on its validation data
      nanochat, gpt2, llama    a preset (also nanochat-2026-07) at initialization, on random tokens
      path/to/model            a Hugging Face folder, or a checkpoint of another tool (see docs/import.md)
      package.module:function  a function that returns (model, batch) or (model, batch, loss); the batch is a tensor,
                               a tuple or a dict of arguments, and the loss a function of the output.
                               Also path/to/file.py:function
      xray.json, RUN/xray      a saved x-ray, or a folder of them

    Returns exit code 1 if a finding is an error. `normscope diff A B` compares two models or two x-rays.
    """

    target: Annotated[tyro.conf.Positional[str], TARGET]
    """Model to inspect."""

    html: opt.OptionalFile = None
    """Also write an HTML report."""

    json: opt.OptionalFile = None
    """Save the x-ray as JSON, for `normscope xray FILE` and `normscope diff`."""

    options: XrayOptions = field(default_factory=XrayOptions)  # type: ignore[valid-type]
    preset: ModelSizeOptions = field(default_factory=ModelSizeOptions)


def main(arguments: Sequence[str]) -> int:
    return _xray(opt.read_arguments(Xray, "xray", arguments))


def xray_settings(options: Any, preset: ModelSizeOptions) -> dict[str, Any]:
    """The fields of `XrayConfig` that were given."""
    sizes = {name: value for name, value in opt.given(preset).items() if name != "model"}
    return {**opt.given(options), "model": opt.join_settings(sizes, preset.model)}


def _xray(command: Xray) -> int:
    from normscope.diagnostics.record_json import save_record
    from normscope.diagnostics.report.terminal import print_record
    from normscope.inspection.xray import xray_target

    print_checkpoint_notice(Path(command.target))
    result = xray_target(command.target, **xray_settings(command.options, command.preset))
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
