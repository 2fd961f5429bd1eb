/** The tab "Playground": one prompt, one model or two side by side. */
import { batch, signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ErrorBox } from "../../components/error-box";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import { ModelPanel, type Choice, type Go } from "./model-panel";
import { SamplingSliders } from "./sampling";
import type { Models, Sampling } from "./types";
import "./playground.css";

/** Kept while other tabs are open. */
const prompt = signal("");
const sampling = signal<Sampling | null>(null);
const first = signal<Choice | null>(null);
const second = signal<Choice | null>(null);

export default function PlaygroundView() {
  const models = useResult<Models>("playground/models", useSignal({})).value;
  const go = useSignal<Go>(null);
  const running = useSignal(0);
  useEffect(() => {
    if (models.data) choose(models.data);
  }, [models.data]);
  const data = models.data;
  const start = (event: Event) => {
    event.preventDefault();
    batch(() => {
      running.value = second.value ? 2 : 1;
      go.value = { prompt: prompt.value, sampling: sampling.value! };
    });
  };
  const stop = () => batch(() => ((running.value = 0), (go.value = null)));
  const ended = () => (running.value = Math.max(0, running.value - 1));
  return (
    <>
      <h1>{t("playground.title")}</h1>
      <p class="faint">{t("playground.intro")}</p>
      <ErrorBox error={models.error} />
      {data && data.models.length === 0 && <p class="panel">{t("playground.no_models")}</p>}
      {data && first.value && sampling.value && (
        <div class="playground">
          <form class="panel" onSubmit={start}>
            <label class="field">
              {t("playground.prompt")}
              <textarea rows={2} maxLength={data.limits.prompt} value={prompt.value} placeholder={t("playground.prompt_empty")}
                onInput={(event) => (prompt.value = event.currentTarget.value)} />
            </label>
            <SamplingSliders sampling={sampling.value} limits={data.limits} onChange={(changed) => (sampling.value = changed)} />
            <div class="row">
              <button class="primary" disabled={running.value > 0}>{t("playground.generate")}</button>
              <button type="button" disabled={running.value === 0} onClick={stop}>{t("playground.stop")}</button>
              <label class="check">
                <input type="checkbox" checked={second.value !== null} disabled={running.value > 0}
                  onChange={(event) => (second.value = event.currentTarget.checked ? other(data, first.value!) : null)} />
                {t("playground.compare")}
              </label>
            </div>
          </form>
          <div class={second.value ? "columns two" : "columns"}>
            <ModelPanel models={data} choice={first.value} onChoice={(choice) => (first.value = choice)} go={go.value} onEnd={ended} />
            {second.value && (
              <ModelPanel models={data} choice={second.value} onChoice={(choice) => (second.value = choice)} go={go.value} onEnd={ended} />
            )}
          </div>
        </div>
      )}
    </>
  );
}

/** The model that the address names, or the one of before, or the first. */
function choose({ models, defaults }: Models): void {
  const named = decodeURIComponent(location.hash.slice(1).split("/")[1] ?? "");
  const names = models.map(({ name }) => name);
  const run = [named, first.value?.run, names[0]].find((name) => name !== undefined && names.includes(name));
  if (run !== undefined && run !== first.value?.run) first.value = { run, checkpoint: "best" };
  const { max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed } = defaults;
  sampling.value ??= { max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed };
}

/** Something to compare with: another run, or the same one at its last checkpoint. */
function other({ models }: Models, { run }: Choice): Choice {
  const different = models.find(({ name }) => name !== run);
  return different ? { run: different.name, checkpoint: "best" } : { run, checkpoint: "last" };
}
