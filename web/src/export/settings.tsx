/** The prompt and the sampling settings. */
import { useSignal, type Signal } from "@preact/signals";
import { t, type MessageKey } from "../i18n";
import type { GenerationSettings } from "../model/generate";
import type { Session } from "./session";

/** The settings as they are typed; an empty filter is off. */
interface Typed {
  temperature: string;
  topK: string;
  topP: string;
  minP: string;
  repetitionPenalty: string;
  maxNewTokens: string;
  seed: string;
}

const DEFAULTS: Typed = { temperature: "0.8", topK: "", topP: "", minP: "", repetitionPenalty: "1", maxNewTokens: "100", seed: "0" };

interface Limits {
  min: number;
  max: number;
  step: number | "any";
}

/** The ranges of `normscope.generate.GenerationConfig`; zero would switch everything off in top-p and min-p. */
const LIMITS: Record<Exclude<keyof Typed, "seed">, Limits> = {
  temperature: { min: 0, max: 5, step: 0.05 },
  topK: { min: 1, max: 1e6, step: 1 },
  topP: { min: 0.01, max: 1, step: 0.01 },
  minP: { min: 0.001, max: 1, step: 0.001 },
  repetitionPenalty: { min: 0.1, max: 10, step: 0.05 },
  maxNewTokens: { min: 1, max: 10_000, step: 1 },
};

export function Controls({ session, prompt }: { session: Session; prompt: Signal<string> }) {
  const typed = useSignal(DEFAULTS);
  const change = (name: keyof Typed) => (value: string) => (typed.value = { ...typed.value, [name]: value });
  const start = (event: Event) => {
    event.preventDefault();
    if (!session.running.value) void session.start(prompt.value, parse(typed.value));
  };
  const stop = (event: Event) => {
    if (!session.running.value) return;
    event.preventDefault(); // or it would generate again
    session.stop();
  };
  const seed = () => change("seed")(String(Math.floor(Math.random() * 1e6)));
  return (
    <form class="panel controls" onSubmit={start} aria-label={t("export.prompt")}>
      <label class="field">
        {t("export.prompt")}
        <textarea
          rows={3}
          value={prompt.value}
          placeholder={t("export.prompt.empty")}
          onInput={(event) => (prompt.value = event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.form!.requestSubmit();
            if (event.key === "Escape") session.stop();
          }}
        />
      </label>
      <div class="fields">
        {(Object.keys(LIMITS) as (keyof typeof LIMITS)[]).map((name) => (
          <label key={name} class="field">
            {t(`export.setting.${name}` as MessageKey)}
            <input
              type="number"
              {...LIMITS[name]}
              required={DEFAULTS[name] !== ""}
              placeholder={t("export.off")}
              value={typed.value[name]}
              onInput={(event) => change(name)(event.currentTarget.value)}
            />
          </label>
        ))}
        <label class="field">
          {t("export.setting.seed")}
          <input inputMode="numeric" pattern="[0-9]{1,19}" required value={typed.value.seed} onInput={(event) => change("seed")(event.currentTarget.value)} />
        </label>
      </div>
      <div class="row">
        {/* One button that changes its task keeps the focus where it is. */}
        <button class="primary action" type="submit" onClick={stop}>
          {session.running.value ? t("export.stop") : t("export.generate")}
        </button>
        <button type="button" onClick={seed}>
          {t("export.newSeed")}
        </button>
        <span class="faint keys">{t("export.keys")}</span>
      </div>
    </form>
  );
}

export function defaultSettings(): GenerationSettings {
  return parse(DEFAULTS);
}

function parse(typed: Typed): GenerationSettings {
  const optional = (text: string) => (text === "" ? null : Number(text));
  return {
    temperature: Number(typed.temperature),
    topK: optional(typed.topK),
    topP: optional(typed.topP),
    minP: optional(typed.minP),
    repetitionPenalty: Number(typed.repetitionPenalty),
    maxNewTokens: Number(typed.maxNewTokens),
    seed: BigInt(typed.seed),
    sample: 0,
  };
}
