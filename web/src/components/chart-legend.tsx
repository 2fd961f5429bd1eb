/** The legend of a chart: each series is a button that hides or shows it, with its value under the pointer. */
import { t } from "../i18n";
import { formatNumber } from "./format";
import type { Series } from "./chart";

interface Props {
  /** The x value under the pointer, with its name; empty while nothing is pointed at. */
  at: string;
  series: readonly Series[];
  /** The value of each series under the pointer. */
  values: readonly (number | null | undefined)[];
  hidden: ReadonlySet<string>;
  onToggle: (label: string) => void;
}

export function ChartLegend({ at, series, values, hidden, onToggle }: Props) {
  return (
    <div class="legend" role="group" aria-label={t("chart.legend")}>
      {series.map(({ label, color, dashed, faint }, i) => (
        <button key={label} type="button" aria-pressed={!hidden.has(label)} onClick={() => onToggle(label)}>
          <span class="swatch" aria-hidden="true" style={{ borderTop: `${faint ? 1 : 3}px ${dashed ? "dashed" : "solid"} var(${color})` }} />
          {label} <span class="value">{at && formatNumber(values[i])}</span>
        </button>
      ))}
      <span class="at">{at}</span>
    </div>
  );
}
