"""CSS and JavaScript of the HTML report."""

PAGE_STYLE = """\
:root { --e: #a0701c; --error: #b4232c; --warning: #a65200; --note: #2f6fb7; --good: #2a7d3f; --tint: #f6f8fa }
@media (prefers-color-scheme: dark) {
  :root { --e: #e3c27a; --error: #f59a98; --warning: #ffb870; --note: #8ec1f0; --good: #93d68c; --tint: #161b22 }
}
.verdict { margin: 10px 0 4px; font-size: 18px; font-weight: 600 }
.verdict i { font-style: normal; margin-right: 6px }
.error { --mark: var(--error) } .warning { --mark: var(--warning) } .note { --mark: var(--note) }
.good { --mark: var(--good) }
.verdict i, .badge { color: var(--mark) }
.card { margin: 0 0 12px; padding: 10px 16px 12px; border: 1px solid var(--edge); border-left: 4px solid var(--mark);
  border-radius: 8px; break-inside: avoid }
h3 { margin: 18px 0 8px; font-size: 15px }
.card h3 { margin: 0 0 2px; font-size: 15px; overflow-wrap: anywhere }
.card p { margin: 6px 0 0; overflow-wrap: anywhere }
.card .where { margin: 0; font-size: 13px }
.badge { margin-right: 4px; white-space: nowrap }
.card .fix b { color: var(--good); margin-right: 4px }
.card pre { margin: 6px 0 0; font-size: 13px; overflow-x: auto }
.card details { margin-top: 8px }
.card summary { margin: 0 }
.card ul { margin: 6px 0 0; padding-left: 18px }
.card li { margin-bottom: 6px; overflow-wrap: anywhere }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 0.92em }
a { color: var(--note) }
.evidence { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 6px 0 0 }
.evidence div { display: flex; gap: 6px }
.evidence dt { color: var(--faint) }
.evidence dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums }
.picture { margin: 0; position: relative; overflow-x: auto }
.picture svg { display: block; width: 100%; min-width: 720px; height: auto }
.picture text { fill: var(--faint); font-size: 11.5px; font-variant-numeric: tabular-nums }
.picture .name { fill: var(--ink); font-weight: 600; font-size: 13px }
.picture .mark { fill: currentColor }
.picture figcaption { color: var(--faint); font-size: 13px; margin-top: 4px; position: sticky; left: 0 }
.picture .grid { stroke: var(--grid) }
.picture .axis { stroke: var(--axis) }
.picture line.level { stroke: var(--level); stroke-dasharray: 5 4 }
.picture text.level { fill: var(--level) }
.picture .line { fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linejoin: round }
.picture .dot { fill: currentColor; stroke: var(--paper) }
.picture .hollow { fill: var(--paper); stroke: currentColor; stroke-width: 1.4 }
.picture .cross { stroke: var(--error); stroke-width: 2; fill: none }
.picture .a { color: var(--a) } .picture .b { color: var(--b) } .picture .c { color: var(--c) }
.picture .d { color: var(--d) } .picture .e { color: var(--e) }
.picture .band { fill: var(--tint) }
.picture .place { fill: transparent }
.picture .place:hover { fill: var(--grid) }
.picture .cell, .picture .step { fill: var(--a); print-color-adjust: exact }
.picture .line, .picture .dot, .picture .grid, .picture .axis, .picture .level, .picture text { pointer-events: none }
.picture .dot:has(title), .picture .cross { pointer-events: auto }
.picture text.on { fill: var(--paper) } .picture text.off { fill: var(--ink) }
.flag circle { fill: var(--paper); stroke: var(--mark); stroke-width: 1.6 }
.flag line { stroke: var(--mark); stroke-width: 1.6 }
.picture .flag text { fill: var(--mark); font-weight: 700 }
.tip { position: fixed; pointer-events: none; padding: 4px 8px; border: 1px solid var(--edge); border-radius: 6px;
  background: var(--paper); font-size: 12px; white-space: pre; z-index: 1; box-shadow: 0 2px 8px #0003 }
.modules { overflow-x: auto; font-size: 13px; font-variant-numeric: tabular-nums }
.modules details, .modules > .row { min-width: 780px }
.row { display: grid; grid-template-columns: minmax(0, 1fr) 150px 76px 66px 96px 96px; gap: 0 14px; padding: 2px 6px;
  border-top: 1px solid var(--edge); margin: 0; color: var(--ink) }
.head { color: var(--faint); border-top: 0 }
.row span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; text-align: right }
.row span:nth-child(1), .row span:nth-child(2) { text-align: left }
summary.row > span:first-child, div.row > span[style] { padding-left: calc(var(--d) * 16px); color: var(--faint) }
summary.row > span:first-child::before { content: "▸"; display: inline-block; width: 14px; color: var(--faint) }
details[open] > summary.row > span:first-child::before { content: "▾" }
.row b { color: var(--ink); font-weight: 600 }
.row .a, .row .b, .weights td.a { padding-bottom: 2px; background: linear-gradient(currentColor, currentColor)
  0 100% / var(--w) 3px no-repeat; print-color-adjust: exact }
.row .a, .weights td.a { background-image: linear-gradient(var(--a), var(--a)) }
.row .b { background-image: linear-gradient(var(--b), var(--b)) }
.row em, .weights em { color: var(--error); font-style: normal; font-weight: 700 }
.row:hover { background: var(--tint) }
.named > summary b { color: var(--warning) }
.named > summary b::after { content: " ◂ finding"; font-weight: 400 }
.holds:not([open]) > summary b::after { content: " ◂ finding inside"; font-weight: 400; color: var(--warning) }
:target { scroll-margin-top: 12px }
details:target > summary, .card:target, li:target { background: var(--tint); outline: 2px solid var(--note) }
.modules dl { display: grid; grid-template-columns: 90px 1fr; gap: 0 12px; margin: 2px 0 8px;
  padding-left: calc(var(--d) * 16px + 20px); color: var(--faint) }
.own summary { margin: 0; padding-left: calc(var(--d) * 16px + 20px); font-size: 12px }
.modules dt { overflow: hidden; text-overflow: ellipsis }
.modules dd { margin: 0; color: var(--ink); overflow-wrap: anywhere }
.scroll { overflow-x: auto }
.weights { table-layout: auto; min-width: 560px; font-size: 13px; font-variant-numeric: tabular-nums }
.weights th, .weights td { padding: 2px 14px 2px 0; text-align: right; font-family: inherit; overflow-wrap: normal }
.weights th:first-child { text-align: left; overflow-wrap: anywhere }
.weights tbody th { color: var(--ink) }
.tiny { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px 18px }
.tiny .picture { overflow: hidden; break-inside: avoid }
.tiny .picture svg { min-width: 0 }
@media (max-width: 600px) {
  body { padding: 16px 12px 40px }
  .verdict { font-size: 16px }
  .row { grid-template-columns: minmax(0, 1fr) 84px 84px }
  .modules details, .modules > .row { min-width: 0 }
  .row span:nth-child(2), .row span:nth-child(3), .row span:nth-child(4) { display: none }
  .modules dl { padding-left: 20px; grid-template-columns: 74px 1fr }
}
@media print {
  @page { margin: 14mm }
  body { max-width: none; padding: 0; font-size: 11px }
  h1 { font-size: 20px } h2 { margin: 16px 0 6px; break-after: avoid }
  .tiles { margin: 8px 0 } .tiles dd { font-size: 15px }
  .picture, .modules, .scroll { overflow: visible }
  .picture { break-inside: avoid }
  .picture svg { min-width: 0 }
  .modules { font-size: 9px }
  .modules details, .modules > .row { min-width: 0 }
  .row { grid-template-columns: minmax(0, 1fr) 110px 56px 56px 64px 64px; gap: 0 8px; break-inside: avoid }
  .own, details:not([open]):not(.row) > summary:not(.row) { display: none }
}
"""

PAGE_SCRIPT = """\
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
for (const title of document.querySelectorAll(".picture title")) {
  title.parentNode.dataset.tooltip = title.textContent;
  title.remove();
}
for (const picture of document.querySelectorAll(".picture")) {
  picture.addEventListener("pointermove", event => {
    const owner = event.target.closest("[data-tooltip]");
    tip.hidden = !owner;
    if (!owner) return;
    tip.textContent = owner.dataset.tooltip;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, room)) + "px";
    const below = event.clientY + 18;
    const fits = below + tip.offsetHeight < innerHeight;
    tip.style.top = (fits ? below : event.clientY - tip.offsetHeight - 12) + "px";
  });
  picture.addEventListener("pointerleave", () => { tip.hidden = true; });
}
const unfold = () => {
  let place = document.getElementById(location.hash.slice(1));
  for (let outer = place; outer; outer = outer.parentElement) if (outer.tagName === "DETAILS") outer.open = true;
  if (place) place.scrollIntoView();
};
addEventListener("hashchange", unfold);
if (location.hash) unfold();
"""
