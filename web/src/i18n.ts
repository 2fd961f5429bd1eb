/** The words of the page, from the project's message catalog, in the language that the user chose. */
import { effect, signal } from "@preact/signals";
import en from "../../src/normscope/messages/en.json";
import zh from "../../src/normscope/messages/zh.json";

export type MessageKey = keyof typeof en;
export type Language = "en" | "zh";

const CATALOGS: Record<Language, Record<MessageKey, string>> = { en, zh };
const KEY = "normscope-language";

function initial(): Language {
  const stored = localStorage.getItem(KEY);
  if (stored === "en" || stored === "zh") return stored;
  return navigator.language.startsWith("zh") ? "zh" : "en";
}

export const language = signal<Language>(initial());

effect(() => {
  document.documentElement.lang = language.value === "zh" ? "zh-CN" : "en";
  localStorage.setItem(KEY, language.value);
});

/** A message; `{name}` in it is replaced by a value. */
export function t(key: MessageKey, values: Record<string, string | number> = {}): string {
  return CATALOGS[language.value][key].replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}
