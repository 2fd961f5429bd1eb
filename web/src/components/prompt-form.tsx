/** The prompt and the sampling settings, and the button that generates. */
import "./model-parts.css";
import type { Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { t } from "../i18n";
import { SamplingFields, type Sampling } from "./sampling";

interface Props {
  prompt: Signal<string>;
  sampling: Signal<Sampling>;
  limits: { prompt?: number; max_new_tokens: number };
  running: boolean;
  onStart: () => void;
  onStop: () => void;
  children?: ComponentChildren;
}

export function PromptForm({ prompt, sampling, limits, running, onStart, onStop, children }: Props) {
  const submit = (event: Event) => {
    event.preventDefault();
    if (!running) onStart();
  };
  const stop = (event: Event) => {
    if (!running) return;
    event.preventDefault(); // or it would generate again
    onStop();
  };
  const newSeed = () => (sampling.value = { ...sampling.value, seed: Math.floor(Math.random() * 1e6) });
  return (
    <form class="panel prompt-form" onSubmit={submit}>
      <label class="field">
        {t("model.prompt")}
        <textarea
          rows={3}
          maxLength={limits.prompt}
          value={prompt.value}
          placeholder={t("model.prompt.empty")}
          onInput={(event) => (prompt.value = event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.form!.requestSubmit();
            if (event.key === "Escape") stop(event);
          }}
        />
      </label>
      <SamplingFields sampling={sampling.value} maxNewTokens={limits.max_new_tokens} onChange={(changed) => (sampling.value = changed)} />
      <div class="row">
        {/* One button that changes its task keeps the focus where it is. */}
        <button class="primary action" type="submit" onClick={stop}>
          {t(running ? "model.stop" : "model.generate")}
        </button>
        <button type="button" onClick={newSeed}>
          {t("model.new_seed")}
        </button>
        {children}
        <span class="faint keys">{t("model.keys")}</span>
      </div>
    </form>
  );
}
