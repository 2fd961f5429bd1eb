/** A run, given as `run:NAME`, or a preset. */
interface Props {
  label: string;
  value: string;
  presets: { label: string; names: string[] };
  runs: { label: string; names: string[] };
  onChange: (target: string) => void;
}

export function TargetSelect({ label, value, presets, runs, onChange }: Props) {
  return (
    <label class="field target">
      {label}
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        <optgroup label={runs.label}>
          {runs.names.map((name) => (
            <option key={name} value={`run:${name}`}>
              {name}
            </option>
          ))}
        </optgroup>
        <optgroup label={presets.label}>
          {presets.names.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </optgroup>
      </select>
    </label>
  );
}
