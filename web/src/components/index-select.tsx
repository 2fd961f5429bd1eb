/** One of several that have numbers only, such as the blocks of a model. People count from 1. */
export function IndexSelect(props: { label: string; count: number; value: number; onChange: (index: number) => void }) {
  return (
    <label class="field">
      {props.label}
      <select value={props.value} onChange={(event) => props.onChange(Number(event.currentTarget.value))}>
        {Array.from({ length: props.count }, (_, i) => (
          <option key={i} value={i}>
            {i + 1}
          </option>
        ))}
      </select>
    </label>
  );
}
