"""Self-contained HTML pages: no external fonts, scripts or images."""

import base64
import hashlib
from collections.abc import Sequence
from html import escape

from normscope.render.formatting import printable


def html_document(title: str, body: Sequence[str], *, style: str = "", script: str = "") -> str:
    """Build an HTML page with the shared style; its content security policy allows only this script.

    >>> html_document("Losses", ["<p>None yet.</p>"]).startswith("<!DOCTYPE html>")
    True
    """
    # The policy allows only this script, whatever text the page contains, and no requests.
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html_text(title)}</title>",
            f"<style>\n{_STYLE}{style}</style>",
            "</head>",
            "<body>",
            *body,
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def html_text(value: object) -> str:
    """Escape any value as HTML text.

    >>> html_text("a<b")
    'a&lt;b'
    """
    return escape(printable(str(value)))


_STYLE = """\
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1f2328; --faint: #59636e; --edge: #d8dee4 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --ink: #e6edf3; --faint: #9198a1; --edge: #30363d }
}
body { max-width: 1040px; margin: 0 auto; padding: 28px 20px 60px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
h1 { margin: 0 0 4px; font-size: 26px }
h2 { margin: 36px 0 10px; font-size: 18px }
header p { margin: 0 0 2px }
.faint { color: var(--faint) }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 16px 0 24px }
.tiles div { display: flex; flex-direction: column-reverse; justify-content: flex-end; flex: 1 1 130px;
  padding: 8px 12px; border: 1px solid var(--edge); border-radius: 8px }
.tiles dt { color: var(--faint); font-size: 12px }
.tiles dd { margin: 0; font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums }
section + section { margin-top: 24px }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 24px 32px }
.text { white-space: pre-wrap; overflow-wrap: anywhere }
summary { color: var(--faint); margin-bottom: 12px; cursor: pointer }
table { border-collapse: collapse; width: 100%; table-layout: fixed }
caption { text-align: left; font-weight: 600; padding-bottom: 4px }
th, td { text-align: left; font-weight: normal; padding: 2px 8px 2px 0; border-top: 1px solid var(--edge);
  vertical-align: top; overflow-wrap: anywhere }
th { color: var(--faint) }
td { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
"""
