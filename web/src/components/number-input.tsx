/** A number that can be edited; while the text is no number within the limits, the last one stays. */
import { useSignal } from "@preact/signals";

export function NumberInput(props: {
  value: number;
  label?: string;
  min?: number;
  max?: number;
  step?: number | "any";
  disabled?: boolean;
  class?: string;
  onChange: (value: number) => void;
}) {
  const typed = useSignal<string | null>(null);
  return (
    <input
      type="number"
      class={props.class}
      aria-label={props.label}
      min={props.min}
      max={props.max}
      step={props.step ?? "any"}
      disabled={props.disabled}
      value={typed.value ?? String(Number(props.value.toFixed(6)))}
      onInput={(event) => {
        const input = event.currentTarget;
        typed.value = input.value;
        if (input.value !== "" && input.validity.valid) props.onChange(input.valueAsNumber);
      }}
      onBlur={() => (typed.value = null)}
    />
  );
}
