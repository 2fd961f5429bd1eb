"""CSS of charts, and the script for their tooltips."""

CHART_STYLE = """\
:root { --a: #2f6fb7; --b: #b35900; --c: #2a7d3f; --d: #8250a8; --e: #0b7f8a; --f: #b0306e; --g: #6b6f00;
  --h: #5b6470; --grid: #e6e9ed; --axis: #8c959f; --level: #b4232c }
@media (prefers-color-scheme: dark) {
  :root { --a: #8ec1f0; --b: #ffb870; --c: #93d68c; --d: #cfa9e3; --e: #7fd6df; --f: #f3a0c6; --g: #d3d66e;
    --h: #b4bcc6; --grid: #242b33; --axis: #6e7681; --level: #f59a98 }
}
.chart { margin: 0; position: relative; overflow-x: auto; overflow-y: hidden }
.chart svg { display: block; width: 100%; height: auto; touch-action: pan-y }
.chart svg.narrow { display: none }
@media (max-width: 700px) { .chart svg.wide { display: none } .chart svg.narrow { display: block } }
.chart text { fill: var(--faint); font-size: 11px; font-variant-numeric: tabular-nums }
.chart text.level { fill: var(--level) }
.chart .grid { stroke: var(--grid) }
.chart .axis, .chart .tick { stroke: var(--axis) }
.chart .level { stroke: var(--level); stroke-dasharray: 5 4 }
.chart text.level { stroke: var(--paper); stroke-width: 3; stroke-dasharray: none; paint-order: stroke }
.chart .line { fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linejoin: round }
.chart .dashed { stroke-dasharray: 6 4 }
.chart .band { fill: currentColor; opacity: 0.16 }
.chart .dot { fill: currentColor; stroke: var(--paper) }
.chart .a { color: var(--a) } .chart .b { color: var(--b) } .chart .c { color: var(--c) } .chart .d { color: var(--d) }
.chart .e { color: var(--e) } .chart .f { color: var(--f) } .chart .g { color: var(--g) } .chart .h { color: var(--h) }
.chart figcaption { display: flex; flex-wrap: wrap; gap: 2px 14px; margin-bottom: 4px }
.chart .key { color: var(--faint); font-size: 13px; white-space: nowrap }
.chart .key i { display: inline-block; width: 14px; height: 3px; margin: 0 5px 3px 0; background: currentColor }
.chart .key i.dashed { height: 0; border-top: 3px dashed currentColor; background: none }
.chart .key i.point { width: 8px; height: 8px; margin: 0 6px 1px 3px; border-radius: 50% }
.chart .pointer { stroke: var(--axis); stroke-dasharray: 2 3 }
.chart output { position: absolute; pointer-events: none; padding: 4px 8px; border: 1px solid var(--edge);
  border-radius: 6px; background: var(--paper); font-size: 12px; white-space: pre; z-index: 1 }
"""

CHART_SCRIPT = """\
for (const svg of document.querySelectorAll(".chart svg")) {
  const lines = JSON.parse(svg.dataset.lines).filter(line => line.points.length);
  const box = document.createElement("output");
  const pointer = document.createElementNS(svg.namespaceURI, "line");
  pointer.setAttribute("class", "pointer");
  box.hidden = true;
  svg.parentNode.append(box);
  svg.addEventListener("pointermove", event => {
    const frame = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / frame.width;
    const x = (event.clientX - frame.left) * scale;
    const nearest = lines.map(line => line.points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
    if (!nearest.length) return;
    const first = nearest.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
    const words = lines.map((line, i) =>
      line.label + " " + nearest[i][2] + (nearest[i][1] === first[1] ? "" : " (" + nearest[i][1] + ")"));
    box.textContent = [first[1], ...words].join("\\n");
    box.hidden = false;
    const room = frame.width - box.offsetWidth - 8;
    box.style.left = Math.max(0, Math.min(first[0] / scale + 12, room)) + "px";
    box.style.top = frame.top - svg.parentNode.getBoundingClientRect().top + 12 + "px";
    const bottom = svg.viewBox.baseVal.height - 40;
    for (const [name, value] of [["x1", first[0]], ["x2", first[0]], ["y1", 8], ["y2", bottom]])
      pointer.setAttribute(name, value);
    svg.append(pointer);
  });
  svg.addEventListener("pointerleave", () => { box.hidden = true; pointer.remove(); });
}
"""
