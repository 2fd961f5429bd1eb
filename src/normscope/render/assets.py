"""Files of the package that become part of pages and drawings: style sheets and scripts."""

from importlib.resources import files


def read_asset(*names: str) -> str:
    """The contents of files, such as `render/chart.css`, joined.

    >>> ".chart" in read_asset("render/chart.css")
    True
    """
    return "".join(files("normscope").joinpath(name).read_text(encoding="utf-8") for name in names)
