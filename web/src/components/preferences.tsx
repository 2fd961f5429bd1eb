/** The switches of language and theme, which a page remembers. */
import { effect, signal } from "@preact/signals";
import { language, t } from "../i18n";
import { recall, remember } from "../storage";

type Theme = "auto" | "light" | "dark";
const THEMES: Theme[] = ["auto", "light", "dark"];
const KEY = "normscope-theme";

export const theme = signal<Theme>(THEMES.find((name) => name === recall(KEY)) ?? "auto");
effect(() => {
  if (theme.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  remember(KEY, theme.value);
});

export function Preferences() {
  const other = language.value === "en" ? "zh" : "en";
  return (
    <div class="settings">
      <button type="button" onClick={() => (language.value = other)} lang={other === "zh" ? "zh-CN" : "en"}>
        {other === "zh" ? "中文" : "English"}
      </button>
      <label>
        <span class="hidden">{t("shell.theme")}</span>
        <select value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
          {THEMES.map((name) => (
            <option key={name} value={name}>
              {t(`theme.${name}`)}
            </option>
          ))}
        </select>
      </label>
    </div>
  );
}
