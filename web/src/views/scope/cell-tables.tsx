/** The cells of a tensor as tables: the last two axes form a table, the others arrange the tables. */
import { useRef } from "preact/hooks";
import { cellName, coordinates, neighbor } from "../../components/cells";
import { formatCell } from "../../components/format";
import { t } from "../../i18n";

export interface CellTablesProps {
  shape: number[];
  axes: string[];
  values: number[];
  groups: number[];
  /** Positions that are not padding. */
  mask: boolean[] | null;
  /** The group that is lit up, and the chosen cell. */
  lit: number | null;
  selected: number | null;
  onSelect: (index: number) => void;
  onHover: (index: number | null) => void;
  label: string;
}

export function CellTables(props: CellTablesProps) {
  const root = useRef<HTMLDivElement>(null);
  const { shape } = props;
  const [rows, columns] = [shape.at(-2)!, shape.at(-1)!];
  const boxes = Array.from({ length: props.values.length / (rows * columns) }, (_, i) => i * rows * columns);
  const perLine = shape.length > 3 ? shape.at(-3)! : boxes.length;

  function onKeyDown(event: KeyboardEvent) {
    if (props.selected === null) return;
    const next = neighbor(props.selected, shape, event.key);
    if (next === props.selected) return;
    event.preventDefault();
    props.onSelect(next);
    root.current?.querySelector<HTMLElement>(`[data-index="${next}"]`)?.focus();
  }

  const lines = Array.from({ length: boxes.length / perLine }, (_, i) => boxes.slice(i * perLine, (i + 1) * perLine));
  return (
    <div
      class="cell-tables"
      ref={root}
      role="group"
      aria-label={props.label}
      onKeyDown={onKeyDown}
      onPointerLeave={() => props.onHover(null)}
    >
      {lines.map((line, i) => (
        <div class="cell-line" key={i}>
          {line.map((start) => (
            <CellTable key={start} {...props} start={start} rows={rows} columns={columns} />
          ))}
        </div>
      ))}
    </div>
  );
}

function CellTable(props: CellTablesProps & { start: number; rows: number; columns: number }) {
  const { shape, axes, start, rows, columns } = props;
  const outer = coordinates(start, shape).slice(0, -2);
  return (
    <table class="cells">
      <caption>{outer.map((at, axis) => `${axes[axis]}=${at}`).join(" ")}</caption>
      <thead>
        <tr>
          <td class="corner" aria-hidden="true">
            {axes.at(-2)}↓ {axes.at(-1)}→
          </td>
          {Array.from({ length: columns }, (_, column) => (
            <th key={column} scope="col">
              {column}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {Array.from({ length: rows }, (_, row) => (
          <tr key={row}>
            <th scope="row">{row}</th>
            {Array.from({ length: columns }, (_, column) => (
              <td key={column}>
                <Cell {...props} index={start + row * columns + column} />
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Cell(props: CellTablesProps & { index: number }) {
  const { index } = props;
  const group = props.groups[index]!;
  const isLit = group === props.lit;
  const isPadding = props.mask ? !props.mask[index] : false;
  const notes = [isLit && t("scope.cell.lit"), isPadding && t("scope.cell.padding")].filter(Boolean).join(", ");
  const number = formatCell(props.values[index]!);
  return (
    <button
      type="button"
      data-index={index}
      class={["cell", isLit && "lit", isPadding && "padding"].filter(Boolean).join(" ")}
      data-series={"abcdef"[group % 6]}
      aria-current={index === props.selected ? "true" : undefined}
      aria-label={`${cellName(index, props.shape, props.axes)}: ${number}${notes && ` (${notes})`}`}
      tabIndex={index === (props.selected ?? 0) ? 0 : -1}
      onClick={() => props.onSelect(index)}
      onPointerEnter={() => props.onHover(index)}
      onFocus={() => props.selected !== index && props.onSelect(index)}
    >
      {number}
    </button>
  );
}
