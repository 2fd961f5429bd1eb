/** The sampling settings: sliders, and the numbers that a slider is too coarse for. */
import { t } from "../i18n";
import { NumberInput } from "./number-input";

/** The settings of `normscope.generate.GenerationConfig`; null switches a filter off. */
export interface Sampling {
  max_new_tokens: number;
  temperature: number;
  top_k: number | null;
  top_p: number | null;
  min_p: number | null;
  repetition_penalty: number;
  seed: number;
}

interface Slider {
  name: Exclude<keyof Sampling, "max_new_tokens" | "seed">;
  min: number;
  max: number;
  step: number;
  /** The value that switches the setting off. */
  off?: number;
}

const SLIDERS: Slider[] = [
  { name: "temperature", min: 0, max: 2, step: 0.05 },
  { name: "top_k", min: 0, max: 200, step: 1, off: 0 },
  { name: "top_p", min: 0.05, max: 1, step: 0.05, off: 1 },
  { name: "min_p", min: 0, max: 0.5, step: 0.01, off: 0 },
  { name: "repetition_penalty", min: 1, max: 2, step: 0.05 },
];

interface Props {
  sampling: Sampling;
  maxNewTokens: number;
  onChange: (sampling: Sampling) => void;
}

export function SamplingFields({ sampling, maxNewTokens, onChange }: Props) {
  const set = (name: keyof Sampling) => (value: number | null) => onChange({ ...sampling, [name]: value });
  const limits = { max_new_tokens: { min: 1, max: maxNewTokens }, seed: { min: 0, max: Number.MAX_SAFE_INTEGER } };
  return (
    <div class="fields">
      {SLIDERS.map(({ name, off, ...range }) => (
        <label key={name} class="field">
          <span class="slider-name">
            {t(`model.${name}`)} <span class="value">{sampling[name] ?? t("model.off")}</span>
          </span>
          <input
            type="range"
            {...range}
            value={sampling[name] ?? off}
            onInput={({ currentTarget: { valueAsNumber } }) => set(name)(valueAsNumber === off ? null : valueAsNumber)}
          />
        </label>
      ))}
      {(["max_new_tokens", "seed"] as const).map((name) => (
        <label key={name} class="field">
          {t(`model.${name}`)}
          <NumberInput value={sampling[name]} {...limits[name]} step={1} onChange={set(name)} />
        </label>
      ))}
    </div>
  );
}
