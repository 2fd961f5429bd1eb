/** The switches of language and theme, which a page remembers. */
import { language, t } from "../i18n";
import { theme, THEMES, type Theme } from "./theme";

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
