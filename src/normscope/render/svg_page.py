"""The page that every SVG drawing stands on: its own paper and ink, for light and dark surroundings."""

import re
from html import escape as escape_html

# Paper and ink change together, so the drawing can be read wherever it is shown. Only fonts that every system has.
_STYLE = """\
.paper { fill: #ffffff; stroke: #d8dee4 }
.ink { fill: #1f2328 }
.faint { fill: #59636e }
.line { stroke: #59636e; fill: none }
.cell { stroke: #1f2328; stroke-opacity: 0.45; stroke-width: 0.8; stroke-linejoin: round }
.letter { fill: #000000; text-anchor: middle }
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; font-size: 13px }
.code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
.title { font-weight: 600; font-size: 14px }
.middle { text-anchor: middle }
@media (prefers-color-scheme: dark) {
  .paper { fill: #0d1117; stroke: #30363d }
  .ink { fill: #e6edf3 }
  .faint { fill: #9198a1 }
  .line { stroke: #9198a1 }
}"""


_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not have in any form: most control characters, and halves of pairs."""


def escape(words: str) -> str:
    """Words as XML has them; what it cannot have is shown as the sign for an unknown character."""
    return escape_html(_NO_XML.sub("\ufffd", words))


def svg_document(width: float, height: float, title: str, description: str, body: list[str]) -> str:
    """A whole SVG document; title and description are what a screen reader says."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title description" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="description">{escape(description)}</desc>',
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def text(x: float, y: float, words: str, kind: str = "ink", more: str = "") -> str:
    """A line of text; `kind` names its classes of style."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{more}>{escape(words)}</text>'
