"""HTML for notebooks: what `_repr_html_` of a result returns."""

from html import escape

from normscope.render.formatting import printable


def page_frame(page: str, *, height: int = 720) -> str:
    """Show a self-contained page in a frame, so that its style and script do not mix with the notebook's.

    >>> page_frame("<p>1</p>", height=100)[:58]
    '<iframe sandbox="allow-scripts" style="width:100%;height:1'
    """
    style = f"width:100%;height:{height}px;border:0"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(page)}"></iframe>'


def preformatted(text: str) -> str:
    """Show text as it is, in a fixed-width font.

    >>> preformatted("a < b")
    '<pre style="white-space:pre;line-height:1.25">a &lt; b</pre>'
    """
    return f'<pre style="white-space:pre;line-height:1.25">{escape(printable(text))}</pre>'
