/** The frame of the page: tabs, language and theme, and the tab that is open. */
import { effect, signal, useSignal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import { connected } from "./api";
import { language, t, type MessageKey } from "./i18n";

/** Each tab is loaded when it is first opened. */
const TABS: Record<string, () => Promise<{ default: ComponentType }>> = {
  scope: () => import("./views/scope"),
  embedding: () => import("./views/embedding"),
  block: () => import("./views/block"),
  runs: () => import("./views/runs"),
  xray: () => import("./views/xray"),
  lab: () => import("./views/lab"),
  playground: () => import("./views/playground"),
};
const NAMES = Object.keys(TABS);

const opened = () => {
  const name = location.hash.slice(1).split("/")[0] ?? "";
  return NAMES.includes(name) ? name : NAMES[0]!;
};
const tab = signal(opened());
addEventListener("hashchange", () => (tab.value = opened()));

type Theme = "auto" | "light" | "dark";
const THEME_KEY = "normscope-theme";
const theme = signal<Theme>((localStorage.getItem(THEME_KEY) as Theme | null) ?? "auto");
effect(() => {
  if (theme.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  localStorage.setItem(THEME_KEY, theme.value);
});

export function Shell() {
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        {t("shell.skip")}
      </a>
      <header class="top">
        <strong class="brand">
          norm<span>[</span>scope<span>]</span>
        </strong>
        <nav aria-label={t("shell.tabs")}>
          {NAMES.map((name) => (
            <a key={name} href={`#${name}`} aria-current={tab.value === name ? "page" : undefined}>
              {t(`tab.${name}` as MessageKey)}
            </a>
          ))}
        </nav>
        <div class="settings">
          <button
            type="button"
            onClick={() => (language.value = language.value === "en" ? "zh" : "en")}
            lang={language.value === "en" ? "zh-CN" : "en"}
          >
            {language.value === "en" ? "中文" : "English"}
          </button>
          <label>
            <span class="hidden">{t("shell.theme")}</span>
            <select value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
              {(["auto", "light", "dark"] as const).map((name) => (
                <option key={name} value={name}>
                  {t(`theme.${name}`)}
                </option>
              ))}
            </select>
          </label>
        </div>
      </header>
      <p class="banner" role="status" hidden={connected.value}>
        {connected.value ? "" : t("shell.disconnected")}
      </p>
      <main id="main" tabIndex={-1}>
        <Tab key={tab.value} name={tab.value} />
      </main>
    </>
  );
}

function Tab({ name }: { name: string }) {
  const View = useSignal<ComponentType | null>(null);
  useEffect(() => {
    document.title = `${t(`tab.${name}` as MessageKey)} · normscope studio`;
    void TABS[name]!().then((module) => (View.value = module.default));
  }, [name, language.value]);
  return View.value ? <View.value /> : <p class="loading">{t("shell.loading")}</p>;
}
