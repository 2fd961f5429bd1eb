"""Export the model of a run: one function, and a table of the formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from normscope.checks import as_path, short_repr
from normscope.errors import ConfigError
from normscope.exporting.html import html_page
from normscope.runs.run import Run
from normscope.storage.files import AtomicFile


@dataclass(frozen=True)
class ExportFormat:
    """A format of `normscope export`.

    Args:
        description: One line for the help.
        suffix: Suffix of the file.
        weights: Weight formats, the default first.
        contents: (run, checkpoint, weights) -> the contents of the file.
    """

    description: str
    suffix: str
    weights: tuple[str, ...]
    contents: Callable[[Run, str | int, str], bytes]


FORMATS: Mapping[str, ExportFormat] = {
    "html": ExportFormat("one page that runs the model in a browser", ".html", ("int8", "float32"), html_page),
}


def export(
    run: Run | str | Path,
    to: str = "html",
    *,
    weights: str | None = None,
    out: str | Path | None = None,
    checkpoint: str | int = "best",
) -> Path:
    """Export the model of a run, like `normscope export`, and return the path of the file.

    Args:
        run: The run, or its folder.
        to: Format. "html" is one page with the model, its tokenizer and views of its attention and predictions. It runs
            in a browser without a server or a network.
        weights: Weight format; for html "int8" (default), with one scale per row, or "float32".
        out: The file; by default NAME.html in the run folder.
        checkpoint: "best", "last", or a saved step.
    """
    export_format = FORMATS.get(to) if isinstance(to, str) else None
    if export_format is None:
        raise ConfigError(f"unknown format to={short_repr(to)}\nfix: use one of {', '.join(FORMATS)}")
    weights = export_format.weights[0] if weights is None else weights
    if weights not in export_format.weights:
        known = ", ".join(export_format.weights)
        raise ConfigError(f"{to} does not support weights={short_repr(weights)}\nfix: use one of {known}")
    opened = run if isinstance(run, Run) else Run.open(run)
    name = f"{opened.folder.resolve().name}{export_format.suffix}"
    path = opened.folder / name if out is None else as_path(out, "an exported file")
    data = export_format.contents(opened, checkpoint, weights)
    if out is None:
        opened.safe_folder.write(name, data)  # refuses a link that somebody else's run folder may contain
    else:
        with AtomicFile(path) as file:
            file.write(data)
    return path
