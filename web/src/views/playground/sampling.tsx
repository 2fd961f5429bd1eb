/** The sampling settings as sliders. */
import { t } from "../../i18n";
import type { Models, Sampling } from "./types";

interface Slider {
  name: keyof Sampling;
  min: number;
  max: number;
  step: number;
  /** The value that switches the setting off: it is sent as null. */
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
  limits: Models["limits"];
  onChange: (sampling: Sampling) => void;
}

export function SamplingSliders({ sampling, limits, onChange }: Props) {
  const set = (name: keyof Sampling, value: number | null) => onChange({ ...sampling, [name]: value });
  const sliders = [...SLIDERS, { name: "max_new_tokens", min: 1, max: limits.max_new_tokens, step: 1 } as Slider];
  return (
    <div class="sliders">
      {sliders.map(({ name, min, max, step, off }) => {
        const value = sampling[name];
        return (
          <label key={name} class="field">
            <span class="slider-name">
              {t(`playground.${name}`)} <span class="value">{value === null ? t("playground.off") : value}</span>
            </span>
            <input type="range" min={min} max={max} step={step} value={value ?? off}
              onInput={(event) => set(name, event.currentTarget.valueAsNumber === off ? null : event.currentTarget.valueAsNumber)} />
          </label>
        );
      })}
      <label class="field">
        {t("playground.seed")}
        <input type="number" min={0} step={1} value={sampling.seed} onInput={(event) => set("seed", Math.max(0, Math.trunc(event.currentTarget.valueAsNumber || 0)))} />
      </label>
    </div>
  );
}
