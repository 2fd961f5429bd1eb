/** X-rays of runs, presets and saved records: what is wrong, the signal in every layer, and two of them compared. */
import "./xray.css";
import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { call, upload } from "../../api";
import { ErrorBox } from "../../components/error-box";
import { bringIntoView } from "../../components/narrow";
import { TargetSelect } from "../../components/target-select";
import { useAction } from "../../components/use-action";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import { Comparison } from "./comparison";
import { Findings } from "./findings";
import { Signal } from "./signal";
import type { Xray, XrayDiff } from "./types";

export default function XrayView() {
  const options = useResult<{ presets: string[]; runs: string[] }>("xray/options", useSignal({}));
  const target = useSignal("");
  const taken = useSignal<Xray[]>([]);
  const opened = useSignal<string | null>(null);
  const action = useAction();
  const records = useRef<HTMLDivElement>(null);
  const diff = useSignal<XrayDiff | null>(null);
  const { presets = [], runs = [] } = options.value.data ?? {};
  const chosen = target.value || (runs[0] !== undefined ? `run:${runs[0]}` : (presets[0] ?? ""));
  const shown = taken.value.find((one) => one.key === opened.value);

  const add = (xray: () => Promise<Xray>) =>
    action.run(async () => {
      const found = await xray();
      taken.value = [...taken.value, found].slice(-8);
      opened.value = found.key;
      diff.value = null; // it compared another one
      requestAnimationFrame(() => bringIntoView(records.current));
    });
  const compare = (other: string) =>
    action.run(async () => {
      diff.value = other ? await call<XrayDiff>("xray/diff", { before: shown!.key, after: other }) : null;
    });
  return (
    <>
      <h1>{t("xray.title")}</h1>
      <p class="faint">{t("xray.intro")}</p>
      <div class="row panel">
        <TargetSelect
          label={t("xray.target")}
          value={chosen}
          runs={{ label: t("xray.runs"), names: runs }}
          presets={{ label: t("xray.presets"), names: presets }}
          onChange={(name) => (target.value = name)}
        />
        <button
          type="button"
          class="primary"
          disabled={action.busy || !chosen}
          onClick={() => void add(() => call<Xray>("xray", { target: chosen }))}
        >
          {action.busy ? t("xray.busy") : t("xray.take")}
        </button>
        <label class="field">
          {t("xray.upload")}
          <input
            type="file"
            accept=".json,application/json"
            onChange={(event) => {
              const file = event.currentTarget.files?.[0];
              if (file) void add(async () => ({ ...(await upload<Xray>("xray/upload", file)), label: file.name }));
            }}
          />
        </label>
      </div>
      <ErrorBox error={action.error} retry={action.retry} />
      {taken.value.length > 0 && (
        <div class="row records" ref={records}>
          <label class="field">
            {t("xray.shown")}
            <select
              value={opened.value ?? ""}
              onChange={(event) => {
                opened.value = event.currentTarget.value;
                diff.value = null;
              }}
            >
              <Records records={taken.value} />
            </select>
          </label>
          <label class="field">
            {t("xray.compare")}
            <select value={diff.value ? undefined : ""} onChange={(event) => void compare(event.currentTarget.value)}>
              <option value="">{t("xray.nothing")}</option>
              <Records records={taken.value} without={opened.value} />
            </select>
          </label>
          {shown && (
            <a href={`xray/${shown.key}`} target="_blank" rel="noopener">
              {t("xray.report")}
            </a>
          )}
        </div>
      )}
      {diff.value && <Comparison diff={diff.value} />}
      {shown && (
        <div class="grid">
          <Findings findings={shown.findings} />
          <Signal modules={shown.modules} />
        </div>
      )}
    </>
  );
}

/** The records as options, numbered as they were taken; one can be left out. */
function Records({ records, without }: { records: Xray[]; without?: string | null }) {
  const numbered = records.map((one, i) => ({ one, number: i + 1 })).filter(({ one }) => one.key !== without);
  return (
    <>
      {numbered.map(({ one, number }) => (
        <option key={one.key} value={one.key}>
          {number}. {one.label}
        </option>
      ))}
    </>
  );
}
