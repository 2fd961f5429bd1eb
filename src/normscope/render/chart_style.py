"""CSS of charts, and the script for their tooltips."""

from normscope.render.assets import read_asset

CHART_STYLE = read_asset("render/chart.css")
CHART_SCRIPT = read_asset("render/chart.js")
