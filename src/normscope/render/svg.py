"""Build SVG: escaped elements, colors, and the frame of a stand-alone document for light and dark backgrounds."""

import re
from collections.abc import Iterable
from html import escape as escape_html
from importlib.resources import files

_INVALID_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot represent: most control characters and lone surrogates."""

PALETTE = ("#8ec1f0", "#ffb870", "#93d68c", "#f59a98", "#f4d966", "#cfa9e3", "#7fd6cd", "#d3b596")
"""Colors of drawings: light enough for black text, and distinguishable with most color vision."""


def escape(words: str) -> str:
    """Escape text for XML; characters that XML cannot represent become U+FFFD."""
    return escape_html(_INVALID_XML.sub("\ufffd", words))


def element(name: str, *content: str, **attributes: object) -> str:
    """Build an element. Content is markup; attribute values are escaped, and those that are None omitted.

    A trailing underscore in an attribute's name is dropped (`class_`), other underscores become hyphens.

    >>> element("line", class_="grid", x1=0, x2=1.5)
    '<line class="grid" x1="0" x2="1.5"/>'
    >>> element("text", escape("a < b"), text_anchor="end", class_=None)
    '<text text-anchor="end">a &lt; b</text>'
    """
    pairs = [(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None]
    opening = "".join([name, *(f' {key}="{escape(str(value))}"' for key, value in pairs)])
    return f"<{opening}>{''.join(content)}</{name}>" if content else f"<{opening}/>"


def figure(width: float, height: float, label: str, body: Iterable[str], caption: str = "") -> str:
    """An HTML figure with a drawing; the label is for screen readers.

    >>> figure(20, 10, "A point", [element("circle", r=1)])
    '<figure class="picture"><svg viewBox="0 0 20 10" role="img" aria-label="A point"><circle r="1"/></svg></figure>'
    """
    drawing = element("svg", *body, viewBox=f"0 0 {width:g} {height:.0f}", role="img", aria_label=label)
    words = (element("figcaption", escape(caption)),) if caption else ()
    return element("figure", drawing, *words, class_="picture")


def horizontal_line(kind: str, start: float, end: float, y: float) -> str:
    """A horizontal line of this class."""
    return element("line", class_=kind, x1=f"{start:.1f}", x2=f"{end:.1f}", y1=f"{y:.1f}", y2=f"{y:.1f}")


def polyline_path(points: Iterable[tuple[float, float] | None]) -> str:
    """Path data through these points, given in pixels; None leaves a gap.

    >>> polyline_path([(0, 1), (2, 3), None, (4, 5)])
    'M0.0 1.0 L2.0 3.0 M4.0 5.0'
    """
    commands, connected = [], False
    for point in points:
        if point is not None:
            commands.append(f"{'L' if connected else 'M'}{point[0]:.1f} {point[1]:.1f}")
        connected = point is not None
    return " ".join(commands)


def svg_document(width: float, height: float, title: str, description: str, body: list[str]) -> str:
    """A stand-alone SVG document; title and description are for screen readers.

    Background and text color change together, so that it is readable in light and dark mode. System fonts only.
    """
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title description" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="description">{escape(description)}</desc>',
        f"<style>\n{read_asset('render/drawing.css')}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def text(x: float, y: float, words: str, kind: str = "ink", more: str = "") -> str:
    """A line of text; `kind` is its CSS class."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{more}>{escape(words)}</text>'


def palette_color(number: int) -> str:
    """The color with this index. Colors repeat, so a drawing never relies on color alone."""
    return PALETTE[number % len(PALETTE)]


def shade(color: str, factor: float) -> str:
    """Darken (factor below 1) or lighten (above 1) a color."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    mixed = (part * factor if factor <= 1 else part + (255 - part) * (factor - 1) for part in parts)
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def read_asset(*names: str) -> str:
    """The contents of files, such as `render/chart.css`, joined.

    >>> ".chart" in read_asset("render/chart.css")
    True
    """
    return "".join(files("normscope").joinpath(name).read_text(encoding="utf-8") for name in names)
