"""Pages from a list of markup, for reports without a template of their own."""

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

from normscope.render.formatting import printable
from normscope.render.pages import render_page


def html_document(title: str, body: Sequence[str], *, style: str = "", script: str = "") -> str:
    """Build an HTML page with the shared style; its content security policy allows only this script.

    >>> html_document("Losses", ["<p>None yet.</p>"]).startswith("<!DOCTYPE html>")
    True
    """
    markup = {"body": Markup("\n".join(body)), "style": Markup(style), "script": Markup(script)}
    return render_page("render/page.html", title=title, **markup)


def html_text(value: object) -> str:
    """Escape any value as HTML text.

    >>> html_text("a<b")
    'a&lt;b'
    """
    return escape(printable(str(value)))
