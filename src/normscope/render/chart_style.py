"""CSS of charts, and the script for their tooltips."""

from normscope.render.pages import asset

CHART_STYLE = asset("render/chart.css")
CHART_SCRIPT = asset("render/chart.js")
