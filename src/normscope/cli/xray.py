"""`normscope xray`: show what is wrong in a model."""

import dataclasses
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from normscope.cli import options as opt
from normscope.cli.sample import print_checkpoint_notice
from normscope.cli.train import ModelSizeOptions
from normscope.errors import ConfigError
from normscope.inspection.xray_config import XrayConfig
from normscope.storage.files import write_atomically, write_error

if TYPE_CHECKING:
    from normscope.inspection.xray import XrayResult

EXIT_FINDINGS = 1
"""Exit code if there is a finding of severity error."""
TARGET = tyro.conf.arg(metavar="[TARGET]", help_behavior_hint="")
Steps = Annotated[int, tyro.conf.arg(metavar="N", help_behavior_hint="")]
DEFAULT_STEPS = 20
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

    `normscope xray [OPTIONS] --script mine.py [ARGS]` runs your training script with its ARGS, and stops it after some
    steps.

    Returns exit code 1 if a finding is an error, or the script fails. `normscope diff A B` compares two models or two
    x-rays.
    """

    target: Annotated[tyro.conf.Positional[str], TARGET] = ""
    """Model to inspect."""

    script: Annotated[Path | None, opt.option("FILE [ARGS]")] = None
    """Run a training script, and x-ray the models that it trains."""

    steps: Steps = DEFAULT_STEPS
    """Optimizer steps after which a script is stopped (default: 20)."""

    tree: opt.Flag = False
    """Also show the signal by depth, and every module."""

    html: opt.OptionalFile = None
    """Also write an HTML report."""

    json: opt.OptionalFile = None
    """Save the x-ray as JSON, for `normscope xray FILE` and `normscope diff`."""

    run: XrayOptions = field(default_factory=XrayOptions)  # type: ignore[valid-type]
    preset: ModelSizeOptions = field(default_factory=ModelSizeOptions)


def main(arguments: Sequence[str]) -> int:
    own, of_script = _split(arguments)
    return _xray(opt.read_arguments(Xray, "xray", own), of_script)


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Separate the options of the command from the arguments of a script, which follow its path."""
    for i, argument in enumerate(arguments):
        if argument == "--script" or argument.startswith("--script="):
            end = i + 2 if argument == "--script" else i + 1
            return arguments[:end], arguments[end:]
    return arguments, ()


def xray_settings(options: Any, preset: ModelSizeOptions) -> dict[str, Any]:
    """The fields of `XrayConfig` that were given."""
    sizes = {name: value for name, value in opt.given(preset).items() if name != "model"}
    return {**opt.given(options), "model": opt.join_settings(sizes, preset.model)}


def _xray(command: Xray, of_script: Sequence[str]) -> int:
    from normscope.inspection.xray import xray_target

    settings = xray_settings(command.run, command.preset)
    for path in (command.json, command.html):  # before a long x-ray
        if path is not None and not path.parent.is_dir():
            raise write_error(path, FileNotFoundError())
    if command.script is not None:
        return _xray_script(command, of_script, settings)
    if not command.target:
        raise ConfigError("the following arguments are required: TARGET\nfix: normscope xray --help")
    if command.steps != DEFAULT_STEPS:
        raise ConfigError("--steps has no effect without --script\nfix: --batches N --step")
    print_checkpoint_notice(Path(command.target))
    result = xray_target(command.target, **settings)
    _show(command, result)
    if len(result.records) > 1:
        print(f"last of {len(result.records)} x-rays in {command.target}; use --html FILE to see all of them")
    return _save(command, result)


def _xray_script(command: Xray, arguments: Sequence[str], settings: Mapping[str, Any]) -> int:
    from normscope.inspection.xray_script import xray_script

    assert command.script is not None
    if command.target:
        problem = f"{command.target} and --script {command.script} are two targets"
        raise ConfigError(f"{problem}\nfix: put the arguments of the script after its path")
    if unused := [name for name, value in settings.items() if value]:
        raise ConfigError(f"{opt.option_name(unused[0])} has no effect on a script\nfix: remove it")
    result = xray_script(command.script, arguments, steps=command.steps)
    sys.stdout.flush()
    code = 0
    if result.xray is not None:
        print()  # a progress bar of the script may have left its line open
        _show(command, result.xray)
        code = _save(command, result.xray)
    if isinstance(result.error, KeyboardInterrupt):
        raise result.error
    if isinstance(result.error, SystemExit):
        print(f"{command.script} ended with exit code {result.error.code}", file=sys.stderr)
    elif result.error is not None:
        sys.stdout.flush()
        traceback.print_exception(result.error)
    return code if result.error is None else EXIT_FINDINGS


def _show(command: Xray, result: "XrayResult") -> None:
    from normscope.diagnostics.report.terminal import print_record

    print_record(result.record, result.findings, tree=command.tree)


def _save(command: Xray, result: "XrayResult") -> int:
    """Write the files that were asked for, and return the exit code."""
    from normscope.diagnostics.record_json import save_record

    if command.json is not None:
        save_record(result.record, command.json)
    if command.html is not None:
        write_atomically(command.html, result.html)
    for path in (command.json, command.html):
        if path is not None:
            print(f"wrote {path}")
    return EXIT_FINDINGS if any(finding.severity == "error" for finding in result.findings) else 0
