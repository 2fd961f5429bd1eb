/** Vectors as rows of a table: numbers, tinted by their sign and size. */
import type { ComponentChildren } from "preact";
import { formatFixed } from "../../components/format";

export interface VectorRow {
  key: string | number;
  heading: ComponentChildren;
  vector: number[];
  /** A row of padding, or rows that were left out before this one. */
  padding?: boolean;
  gap?: boolean;
}

export function VectorTable(props: {
  caption: string;
  rows: VectorRow[];
  /** Values that are lit up, by row and feature. */
  isLit: (row: number, feature: number) => boolean;
  onPoint?: (row: number, feature: number) => void;
  /** The whole width, if only the first features are shown. */
  width: number;
}) {
  const shown = props.rows[0]?.vector.length ?? 0;
  const largest = Math.max(1e-9, ...props.rows.map(({ vector }) => Math.max(...vector.map(Math.abs))));
  const point = (event: MouseEvent) => {
    const cell = (event.target as HTMLElement).closest<HTMLElement>("td[data-row]");
    if (cell) props.onPoint?.(Number(cell.dataset.row), Number(cell.dataset.feature));
  };
  return (
    <table class="vectors" onMouseOver={point}>
      <caption>{props.caption}</caption>
      <thead>
        <tr>
          <td />
          {Array.from({ length: shown }, (_, d) => (
            <th key={d} scope="col">
              {d}
            </th>
          ))}
          {props.width > shown && <th scope="col">… {props.width - 1}</th>}
        </tr>
      </thead>
      <tbody>
        {props.rows.map((row, i) => (
          <tr key={row.key} class={[row.padding && "padding", row.gap && "gap"].filter(Boolean).join(" ") || undefined}>
            <th scope="row">{row.heading}</th>
            {row.vector.map((value, d) => (
              <td
                key={d}
                data-row={i}
                data-feature={d}
                class={props.isLit(i, d) ? "lit" : undefined}
                style={`--strength: ${Math.round((Math.abs(value) / largest) * 42)}%; --tint: var(${value < 0 ? "--series-b" : "--series-a"})`}
              >
                {formatFixed(value)}
              </td>
            ))}
            {props.width > shown && <td class="more">…</td>}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
