"""`normscope diff`: compare two models, or two x-rays."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from normscope.cli import options as opt
from normscope.cli.train import ModelSizeOptions
from normscope.cli.xray import XrayOptions, xray_settings

EXIT_DIFFERENT = 1
"""Exit code if there is a difference."""
_SOURCE = tyro.conf.arg(metavar="SOURCE")


@dataclass(frozen=True)
class Diff:
    """Compare two models: structure, weights, tokenizers, logits and greedy tokens.

    A SOURCE is a run, a preset, a Hugging Face folder, or a checkpoint of another tool (see docs/import.md). If the
    logits differ, the first layer that does is named, and the known mistake of a conversion that makes them equal.
    Saved x-rays, functions, and one model run in two ways are compared by their x-rays, module by module.

    Examples:
      normscope diff runs/one path/to/model.gguf
      normscope diff runs/one runs/two --xray           by their x-rays
      normscope diff before.json after.json             saved x-rays
      normscope diff runs/one --dtype bfloat16          float32 against bfloat16
      normscope diff runs/one --cached

    Returns exit code 1 if they differ by more than rounding.
    """

    one: Annotated[tyro.conf.Positional[str], _SOURCE]
    """A model, or a target of `normscope xray`."""

    other: Annotated[tyro.conf.Positional[str], opt.option("[SOURCE]")] = ""
    """The other one (default: the same, run with the x-ray options below)."""

    xray: opt.Flag = False
    """Compare the x-rays of the models."""

    tolerance: opt.OptionalFloat = None
    """Relative tolerance (default: that of the precision)."""

    json: opt.Flag = False
    """Print the differences as JSON."""

    run: XrayOptions = field(default_factory=XrayOptions)
    preset: ModelSizeOptions = field(default_factory=ModelSizeOptions)


def main(arguments: Sequence[str]) -> int:
    command = opt.read_arguments(Diff, "diff", arguments)
    from normscope.comparing.comparison import ModelDiff
    from normscope.diagnostics.record_json import to_json
    from normscope.diagnostics.report.diff import render_diff
    from normscope.diagnostics.report.terminal import print_text, terminal_width
    from normscope.inspection.diff import diff
    from normscope.render.text_columns import glyphs_for

    settings = {name: value for name, value in xray_settings(command.run, command.preset).items() if value != {}}
    found = diff(command.one, command.other, xray=command.xray, tolerance=command.tolerance, **settings)
    if command.json:
        content = to_json(dataclasses.asdict(found))
        print(json.dumps(content, indent=1, default=str, allow_nan=False))
    elif isinstance(found, ModelDiff):
        print(found)
    else:
        print_text(render_diff(found, width=terminal_width(), glyphs=glyphs_for(sys.stdout.encoding)))
    differs = found.differs if isinstance(found, ModelDiff) else found.diverges
    return EXIT_DIFFERENT if differs else 0
