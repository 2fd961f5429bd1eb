/** Colors for canvases, which know no CSS variables, in the theme that is shown. */
import { signal } from "@preact/signals";

/** Counts changes of the theme: read it where something has to be drawn again. */
export const themeChanges = signal(0);

const changed = () => (themeChanges.value += 1);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
new MutationObserver(changed).observe(document.documentElement, { attributeFilter: ["data-theme"] });

/** The current value of a color such as "--series-a", as rgb(). */
export function themeColor(variable: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}
