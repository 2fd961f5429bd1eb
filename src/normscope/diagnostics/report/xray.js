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
