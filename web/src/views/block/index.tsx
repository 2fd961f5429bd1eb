/** The residual stream of a preset or a run: choose a part to see its formula, its code and its numbers on a token. */
import "./block.css";
import { useComputed, useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { Choice } from "../../components/choice";
import { ErrorBox } from "../../components/error-box";
import { IndexSelect } from "../../components/index-select";
import { bringIntoView } from "../../components/narrow";
import { TargetSelect } from "../../components/target-select";
import { visible } from "../../components/tokens";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import { Changes } from "./changes";
import { Diagram } from "./diagram";
import { PartDetails } from "./part-details";
import type { BlockAnswer, BlockOptions } from "./types";

const SETTINGS = ["wiring", "norm", "activation"] as const;

export default function BlockView() {
  const options = useResult<BlockOptions>("block/options", useSignal({}));
  const model = useSignal("nanochat");
  const text = useSignal("Once upon a time");
  const position = useSignal(-1);
  const block = useSignal(0);
  const settings = useSignal<Record<string, string>>({});
  const part = useSignal("attention");
  const answer = useResult<BlockAnswer>(
    "block",
    useComputed(() => ({
      model: model.value,
      text: text.value,
      position: position.value,
      block: block.value,
      settings: settings.value,
    })),
    150,
  );
  const { data, error } = answer.value;
  const isRun = model.value.startsWith("run:");
  const shown = data?.parts.find((one) => one.name === part.value) ?? data?.parts[0];
  const details = useRef<HTMLDivElement>(null);
  /** Where the page was when a part of the drawing was chosen. */
  const from = useRef(0);
  const select = (name: string) => {
    part.value = name;
    from.current = scrollY;
    bringIntoView(details.current);
  };
  const choose = (name: string) => {
    model.value = name;
    settings.value = {};
    block.value = 0;
    position.value = -1;
  };
  return (
    <>
      <h1>{t("block.title")}</h1>
      <p class="faint">{t("block.intro")}</p>
      <form class="row panel" onSubmit={(event) => event.preventDefault()}>
        <TargetSelect
          label={t("block.model")}
          value={model.value}
          runs={{ label: t("block.runs"), names: options.value.data?.runs ?? [] }}
          presets={{ label: t("block.presets"), names: options.value.data?.presets ?? [model.value] }}
          onChange={choose}
        />
        {SETTINGS.map((name) => (
          <label key={name} class="field">
            {t(`block.${name}`)}
            <select
              disabled={isRun}
              value={settings.value[name] ?? ""}
              onChange={(event) => {
                const { [name]: _, ...others } = settings.value;
                const value = event.currentTarget.value;
                settings.value = value ? { ...others, [name]: value } : others;
              }}
            >
              <option value="">{t("block.asPreset")}</option>
              {names(options.value.data?.[name]).map((value) => (
                <option key={value}>{value}</option>
              ))}
            </select>
          </label>
        ))}
        <label class="field grow">
          {t("block.text")}
          <input
            value={text.value}
            maxLength={400}
            onInput={(event) => {
              text.value = event.currentTarget.value;
              position.value = -1;
            }}
          />
        </label>
        {data && data.blocks > 1 && (
          <IndexSelect label={t("model.block")} count={data.blocks} value={block.value} onChange={(index) => (block.value = index)} />
        )}
      </form>
      <ErrorBox error={error} />
      {data && (
        <>
          <p class="formula mono">{data.formula}</p>
          {data.changes && <Changes changes={data.changes} />}
          <div class="block-tokens">
            <Choice
              label={t("block.tokens")}
              value={String(position.value < 0 ? data.tokens.length + position.value : position.value)}
              options={data.tokens.map((text, i) => ({ value: String(i), label: visible({ text }) }))}
              onChange={(index) => (position.value = Number(index))}
            />
          </div>
          <div class="halves">
            <Diagram svg={data.svg} selected={shown?.name ?? ""} onSelect={select} />
            <div class="panel sticky part" ref={details}>
              <a class="back" href="#block" onClick={(event) => (event.preventDefault(), scrollTo({ top: from.current }))}>
                ↑ {t("block.back")}
              </a>
              <label class="field">
                {t("block.part")}
                <select value={shown?.name} onChange={(event) => (part.value = event.currentTarget.value)}>
                  {data.parts.map((one) => (
                    <option key={one.name} value={one.name}>
                      {one.name || t("block.whole")} · {one.kind}
                    </option>
                  ))}
                </select>
              </label>
              {shown && <PartDetails part={shown} />}
            </div>
          </div>
        </>
      )}
      {!data && !error && <p class="loading">{t("shell.loading")}</p>}
    </>
  );
}

const names = (choices: string[] | Record<string, string> | undefined) =>
  Array.isArray(choices) ? choices : Object.keys(choices ?? {});
