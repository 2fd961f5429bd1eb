"""`normscope export`: export the model of a run to another format."""

from collections.abc import Sequence
from dataclasses import dataclass

from normscope.cli.options import Checkpoint, OptionalFile, OptionalStr, RunFolder, Str, read_arguments
from normscope.cli.sample import print_checkpoint_notice


@dataclass(frozen=True)
class Export:
    """Export the model of a run: html is one page that runs it in a browser, without a server or a network.

    Example: normscope export runs/stories --to html --out stories.html
    """

    run: RunFolder
    """Run folder."""

    to: Str = "html"
    """Format: html."""

    weights: OptionalStr = None
    """Weight format: int8 (default; a quarter of the size) or float32."""

    out: OptionalFile = None
    """Output file. Default: NAME.html in the run folder."""

    checkpoint: Checkpoint = "best"
    """Checkpoint: best, last or a step number."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Export, "export", arguments)
    from normscope.exporting.export import export

    print_checkpoint_notice(command.run)
    path = export(command.run, command.to, weights=command.weights, out=command.out, checkpoint=command.checkpoint)
    print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB); open it in a browser")
