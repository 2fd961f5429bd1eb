"""Pages from templates: escaped, complete, and allowed to run only their own script."""

import base64
import hashlib
import re

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from normscope.render.pages import asset, render_page


def test_text_is_escaped_and_markup_is_not() -> None:
    page = render_page("render/page.html", title="a<b", body="<script>alert(1)</script>\x1b[31m")
    assert "<title>a&lt;b</title>" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd[31m" in page
    assert "<p>kept</p>" in render_page("render/page.html", title="", body=Markup("<p>kept</p>"))


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="title"):
        render_page("render/page.html", body="")


def test_policy_allows_only_the_script_of_the_page() -> None:
    page = render_page("render/page.html", title="", body="", script=asset("render/chart.js"))
    policy = re.search(r"script-src 'sha256-([^']+)'", page)
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)
    assert policy is not None
    assert script is not None
    assert policy[1] == base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)="', page)


def test_assets_are_joined_in_order() -> None:
    both = asset("render/page.css", "render/chart.css")
    assert both == asset("render/page.css") + asset("render/chart.css")
    assert both in render_page("render/page.html", title="", body="", style=asset("render/chart.css"))
