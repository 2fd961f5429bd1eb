/** The theme that the user chose, and its colors for canvases, which know no CSS variables. */
import { computed, effect, signal } from "@preact/signals";
import { recall, remember } from "../storage";

export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];
const KEY = "normscope-theme";

export const theme = signal<Theme>(THEMES.find((name) => name === recall(KEY)) ?? "auto");
effect(() => {
  if (theme.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  remember(KEY, theme.value);
});

const system = matchMedia("(prefers-color-scheme: dark)");
const systemIsDark = signal(system.matches);
system.addEventListener("change", () => (systemIsDark.value = system.matches));

/** Whether the page is dark: read it where something has to be drawn again. */
export const isDark = computed(() => (theme.value === "auto" ? systemIsDark.value : theme.value === "dark"));

/** The current value of a color such as "--series-a", as rgb(). */
export function themeColor(variable: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}
