"""CSS of charts, and the script for their tooltips."""

from normscope.render.pages import asset

CHART_STYLE = str(asset("render/chart.css"))  # joined with plain text, which Markup would escape
CHART_SCRIPT = str(asset("render/chart.js"))
