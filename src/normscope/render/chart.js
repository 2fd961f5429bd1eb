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
    box.textContent = [first[1], ...words].join("\n");
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
