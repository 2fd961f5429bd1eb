"""A chart as a stand-alone SVG file, for documents without the page's CSS: light mode, with its legend."""

import re
import textwrap

from normscope.render.chart import Chart, Plot, describe_intervals
from normscope.render.svg import escape, read_asset

HEAD, ROW, GAP = 26, 18, 18
CHARACTER, WIDE_CHARACTER = 6.6, 7.6  # approximate width of a character in the legend and title


def chart_file(chart: Chart) -> str:
    """Render the file.

    >>> from normscope.render.chart import ChartLine
    >>> lines = [ChartLine("training", [(1, 3.0), (2, 2.0)]), ChartLine("validation", [(1, 3.1), (2, 2.2)], "b")]
    >>> text = chart_file(Chart("Loss", "step", "nats", lines))
    >>> text.startswith("<svg") and "validation" in text
    True
    """
    said = describe_intervals(chart)
    title = textwrap.wrap(chart.title, int(chart.width / WIDE_CHARACTER)) or [""]
    keys, top = _legend(chart, HEAD + ROW * (len(title) - 1))
    top += ROW * bool(said)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {chart.width} {chart.height + top}" '
            f'width="{chart.width}" height="{chart.height + top}" class="chart" '
            f'font-family="system-ui, sans-serif">',
            f"<style>{_light_style()}</style>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *(
                f'<text x="8" y="{17 + ROW * row}" style="font-size:13px;font-weight:600;fill:#1f2328">'
                f"{escape(words)}</text>"
                for row, words in enumerate(title)
            ),
            *keys,
            *([f'<text x="8" y="{top - ROW + 8}">{escape("; ".join(said))}</text>'] if said else []),
            f'<g transform="translate(0 {top})">',
            *Plot(chart).elements(),
            "</g>",
            "</svg>",
            "",
        ]
    )


def _light_style() -> str:
    """The CSS with variables replaced by light colors: many SVG viewers do not support variables."""
    style = read_asset("render/chart.css")
    variables, rules = style.partition("@media")[0], style[style.index(".chart text {") :]
    colors = {"faint": "#59636e", "paper": "#ffffff", "edge": "#d8dee4"}
    colors |= dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", variables))
    return re.sub(r"var\(--([a-z]+)\)", lambda name: colors[name[1]], rules)


def _legend(chart: Chart, top: int) -> tuple[list[str], int]:
    """The entries of the legend, in rows that fit; also returns where it ends."""
    keys, x, row = [], float(chart.width), top - ROW
    for line in chart.lines if len(chart.lines) > 1 else ():
        length = 20 + CHARACTER * len(line.label) + GAP
        if x + length > chart.width:
            x, row = 8.0, row + ROW
        if line.connected:
            kind = f"line{' dashed' if line.dashed else ''} {line.color}"
            keys.append(f'<path class="{kind}" style="stroke-width:3" d="M{x:.1f} {row + 4}h14"/>')
        else:
            keys.append(f'<circle class="dot {line.color}" cx="{x + 7:.1f}" cy="{row + 4}" r="4"/>')
        keys.append(f'<text x="{x + 20:.1f}" y="{row + 8}">{escape(line.label)}</text>')
        x += length
    return keys, row + ROW
