/** One of several options, as a row of buttons: radio buttons for the keyboard and for screen readers. */
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import "./choice.css";

export function Choice<Value extends string>(props: {
  label: string;
  /** No option is chosen if this is none of them. */
  value: Value | null;
  options: { value: Value; label: ComponentChildren; disabled?: boolean }[];
  onChange: (value: Value) => void;
}) {
  const name = useId();
  return (
    <fieldset class="choice">
      <legend>{props.label}</legend>
      {props.options.map(({ value, label, disabled }) => (
        <label key={value}>
          <input
            type="radio"
            name={name}
            checked={value === props.value}
            disabled={disabled}
            onChange={() => props.onChange(value)}
          />
          <span>{label}</span>
        </label>
      ))}
    </fieldset>
  );
}
