/** The frame of the page: tabs, language and theme, and the tab that is open. */
import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { connected } from "./api";
import { ErrorBox } from "./components/error-box";
import { Preferences } from "./components/preferences";
import { useModule } from "./components/use-module";
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

export function Shell() {
  const nav = useRef<HTMLElement>(null);
  useEffect(() => {
    const row = nav.current!, link = row.querySelector<HTMLElement>("[aria-current]")!;
    row.scrollLeft = link.offsetLeft - row.offsetLeft - (row.clientWidth - link.offsetWidth) / 2; // a phone shows a part of the tabs
  }, [tab.value, language.value]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        {t("shell.skip")}
      </a>
      <header class="top">
        <strong class="brand">
          norm<span>[</span>scope<span>]</span>
        </strong>
        <nav ref={nav} aria-label={t("shell.tabs")}>
          {NAMES.map((name) => (
            <a key={name} href={`#${name}`} aria-current={tab.value === name ? "page" : undefined}>
              {t(`tab.${name}` as MessageKey)}
            </a>
          ))}
        </nav>
        <Preferences />
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
  const { module, error } = useModule(TABS[name]!).value;
  useEffect(() => void (document.title = `${t(`tab.${name}` as MessageKey)} · normscope studio`), [name, language.value]);
  if (module) return <module.default />;
  return error ? <ErrorBox error={error} /> : <p class="loading">{t("shell.loading")}</p>;
}
