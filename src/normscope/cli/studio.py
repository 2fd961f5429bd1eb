"""`normscope studio`: the local web page."""

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from normscope.cli.options import Flag, Folder, Int, read_arguments
from normscope.errors import ConfigError
from normscope.lab.results.folders import DEFAULT_FOLDER


@dataclass(frozen=True)
class Studio:
    """Open a local web page: scopes, models, runs, x-rays, the lab and a playground.

    It is reachable from this machine only, by the printed address. Ctrl-C stops it, and saves the runs it started.
    """

    runs: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="[FOLDER]")] = Path("runs")
    """Folder of the runs."""

    lab: Folder = DEFAULT_FOLDER
    """Folder of the lab's results."""

    port: Int = 0
    """Port to listen on; 0 for a free one."""

    no_browser: Flag = False
    """Don't open a browser."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Studio, "studio", arguments)
    try:
        from normscope.studio.server import open_studio
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the studio needs {error.name}\nfix: make studio, or pip install 'normscope[studio]'"
        ) from None

    def on_ready(address: str) -> None:
        print(f"normscope studio: {address}\nCtrl-C to stop", flush=True)
        if not command.no_browser:
            webbrowser.open(address)

    open_studio(command.runs, lab=command.lab, port=command.port, on_ready=on_ready)
