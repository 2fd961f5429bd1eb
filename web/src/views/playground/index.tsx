/** The tab "Playground": one prompt, one model or two side by side. */
import { batch, signal, useSignal, type Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { addressed } from "../../address";
import { ErrorBox } from "../../components/error-box";
import { PromptForm } from "../../components/prompt-form";
import type { Sampling } from "../../components/sampling";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import { ModelPanel, type Go, type Source } from "./model-panel";
import type { Models } from "./types";
import "./playground.css";

/** Kept while other tabs are open. */
const prompt = signal("");
const sampling = signal<Sampling | null>(null);
const first = signal<Source | null>(null);
const second = signal<Source | null>(null);

export default function PlaygroundView() {
  const models = useResult<Models>("playground/models", useSignal({})).value;
  const go = useSignal<Go>(null);
  const running = useSignal(0);
  useEffect(() => {
    if (models.data) choose(models.data);
  }, [models.data]);
  const data = models.data;
  const start = () =>
    batch(() => {
      running.value = second.value ? 2 : 1;
      go.value = { prompt: prompt.value, sampling: sampling.value! };
    });
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
          <PromptForm
            prompt={prompt}
            sampling={sampling as Signal<Sampling>}
            limits={data.limits}
            running={running.value > 0}
            onStart={start}
            onStop={stop}
          >
            <label class="check">
              <input
                type="checkbox"
                checked={second.value !== null}
                disabled={running.value > 0}
                onChange={(event) => (second.value = event.currentTarget.checked ? other(data, first.value!) : null)}
              />
              {t("playground.compare")}
            </label>
          </PromptForm>
          <div class={second.value ? "columns two" : "columns"}>
            <ModelPanel models={data} choice={first.value} onChoice={(choice) => (first.value = choice)} go={go.value} onEnd={ended} onRetry={start} />
            {second.value && (
              <ModelPanel models={data} choice={second.value} onChoice={(choice) => (second.value = choice)} go={go.value} onEnd={ended} onRetry={start} />
            )}
          </div>
        </div>
      )}
    </>
  );
}

/** The model that the address names, or the one of before, or the first. */
function choose({ models, defaults }: Models): void {
  const names = models.map(({ name }) => name);
  const run = [addressed(), first.value?.run, names[0]].find((name) => name !== undefined && names.includes(name));
  if (run !== undefined && run !== first.value?.run) first.value = { run, checkpoint: "best" };
  const { max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed } = defaults;
  sampling.value ??= { max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed };
}

/** Something to compare with: another run, or the same one at its last checkpoint. */
function other({ models }: Models, { run }: Source): Source {
  const different = models.find(({ name }) => name !== run);
  return different ? { run: different.name, checkpoint: "best" } : { run, checkpoint: "last" };
}
