"""HTML pages from Jinja2 templates: self-contained, without external fonts, scripts or images.

Templates (.html) and their assets (.css, .js) are next to the report that uses them; their names are paths in the
package, such as `render/page.html`, the frame that every page extends:

    {% extends "render/page.html" %}
    {% set style = asset("render/chart.css", "lab/report/lab.css") %}
    {% set script = asset("render/chart.js") %}
    {% block body %}<h1>{{ title }}</h1>{% endblock %}
"""

import base64
import hashlib
import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from normscope.render.formatting import one_line, pluralize, printable
from normscope.render.svg import read_asset


def render_page(template: str, /, **values: object) -> str:
    """Render a template of the package.

    Text is escaped, and its control characters are replaced; markup, such as the figure of a chart, is passed as
    `markupsafe.Markup`. A value that the template needs and does not get is an error.

    >>> page = render_page("render/page.html", title="Losses", body="1 < 2")
    >>> page.startswith("<!DOCTYPE html>"), "1 &lt; 2" in page
    (True, True)
    """
    return _environment().get_template(template).render(values)


def asset(*names: str) -> Markup:
    """The contents of files of the package, such as `render/chart.css`, joined."""
    return Markup(read_asset(*names))


def with_code(text: str) -> Markup:
    """Escape text, with text in backticks as code.

    >>> with_code("use `a<b`, please")
    Markup('use <code>a&lt;b</code>, please')
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("normscope", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_without_control_characters,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = asset
    environment.filters |= {"code": with_code, "one_line": one_line, "plural": pluralize, "sha256": _sha256}
    return environment


def _without_control_characters(value: Any) -> Any:
    return value if hasattr(value, "__html__") else printable(str(value))


def _sha256(text: str) -> str:
    """The hash of a script, as a content security policy expects it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
