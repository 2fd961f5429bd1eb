/** The words of the page, from the project's message catalog (src/normscope/messages), in the language that the user chose. */
import { effect, signal } from "@preact/signals";
import { recall, remember } from "./storage";
import enShell from "../../src/normscope/messages/en/shell.json";
import enScope from "../../src/normscope/messages/en/scope.json";
import enEmbedding from "../../src/normscope/messages/en/embedding.json";
import enBlock from "../../src/normscope/messages/en/block.json";
import enRuns from "../../src/normscope/messages/en/runs.json";
import enXray from "../../src/normscope/messages/en/xray.json";
import enLab from "../../src/normscope/messages/en/lab.json";
import enPlayground from "../../src/normscope/messages/en/playground.json";
import enModel from "../../src/normscope/messages/en/model.json";
import enExport from "../../src/normscope/messages/en/export.json";
import zhShell from "../../src/normscope/messages/zh/shell.json";
import zhScope from "../../src/normscope/messages/zh/scope.json";
import zhEmbedding from "../../src/normscope/messages/zh/embedding.json";
import zhBlock from "../../src/normscope/messages/zh/block.json";
import zhRuns from "../../src/normscope/messages/zh/runs.json";
import zhXray from "../../src/normscope/messages/zh/xray.json";
import zhLab from "../../src/normscope/messages/zh/lab.json";
import zhPlayground from "../../src/normscope/messages/zh/playground.json";
import zhModel from "../../src/normscope/messages/zh/model.json";
import zhExport from "../../src/normscope/messages/zh/export.json";

const en = { ...enShell, ...enScope, ...enEmbedding, ...enBlock, ...enRuns, ...enXray, ...enLab, ...enPlayground, ...enModel, ...enExport };
const zh = { ...zhShell, ...zhScope, ...zhEmbedding, ...zhBlock, ...zhRuns, ...zhXray, ...zhLab, ...zhPlayground, ...zhModel, ...zhExport };

export type MessageKey = keyof typeof en;
export type Language = "en" | "zh";

const CATALOGS: Record<Language, Record<MessageKey, string>> = { en, zh };
const KEY = "normscope-language";

function initial(): Language {
  const stored = recall(KEY);
  if (stored === "en" || stored === "zh") return stored;
  return navigator.language.startsWith("zh") ? "zh" : "en";
}

export const language = signal<Language>(initial());

/** The language as in HTML's attribute `lang`. */
export const locale = () => (language.value === "zh" ? "zh-CN" : "en");

/** A whole number as people write it in the language: 1,234,567. */
export const formatInteger = (value: number) => value.toLocaleString(locale());

effect(() => {
  document.documentElement.lang = locale();
  remember(KEY, language.value);
});

/** A message; `{name}` in it is replaced by a value. */
export function t(key: MessageKey, values: Record<string, string | number> = {}): string {
  return CATALOGS[language.value][key].replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}
