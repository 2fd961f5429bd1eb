/** The attention weights of a head as a heatmap: a row for each token that looks, a column for each that it looks at. */
import "./model-parts.css";
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { t } from "../i18n";
import { theme } from "./preferences";
import { formatProbability, visible } from "./token-label";

interface Props {
  labels: string[];
  /** Row i has the weights of token i for the tokens 0 to i. */
  weights: ArrayLike<number>[];
  selected: number | null;
  onSelect: (row: number) => void;
}

const TOP = 6;

export function AttentionMap({ labels, weights, selected, onSelect }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const pointed = useSignal<[number, number] | null>(null);
  const size = Math.max(1, weights.length);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  useEffect(() => {
    const redraw = () => draw(canvas.current!, weights);
    redraw();
    dark.addEventListener("change", redraw);
    return () => dark.removeEventListener("change", redraw);
  }, [weights, theme.value]);
  const cell = (event: PointerEvent): [number, number] => {
    const box = canvas.current!.getBoundingClientRect();
    const index = (offset: number, length: number) => Math.min(size - 1, Math.max(0, Math.floor((offset / length) * size)));
    return [index(event.clientY - box.top, box.height), index(event.clientX - box.left, box.width)];
  };
  const [row, column] = pointed.value ?? [selected ?? 0, selected ?? 0];
  const weight = weights[row]?.[column];
  return (
    <div class="attention-map">
      <div class="plot">
        <canvas
          ref={canvas}
          role="img"
          aria-label={t("model.attention.alternative", { count: labels.length })}
          onPointerMove={(event) => (pointed.value = cell(event))}
          onPointerLeave={() => (pointed.value = null)}
          onClick={(event) => onSelect(cell(event as unknown as PointerEvent)[0])}
        />
        {selected !== null && <div class="mark" style={{ top: `${(100 * selected) / size}%`, height: `${100 / size}%` }} />}
      </div>
      <p class="faint mono pointed">
        {pointed.value && weight !== undefined
          ? `${visible(labels[row]!)} → ${visible(labels[column]!)}  ${formatProbability(weight)}`
          : t("model.attention.hint")}
      </p>
      <div class="strongest">
        {selected !== null && weights[selected] && <Strongest labels={labels} weights={weights[selected]!} row={selected} />}
      </div>
    </div>
  );
}

/** The tokens that one token looks at most: the heatmap's row as a table. */
function Strongest({ labels, weights, row }: { labels: string[]; weights: ArrayLike<number>; row: number }) {
  const columns = Array.from(weights, (_, column) => column).sort((a, b) => weights[b]! - weights[a]!);
  return (
    <table class="bars">
      <caption>{t("model.attention.from", { token: visible(labels[row]!) })}</caption>
      <tbody>
        {columns.slice(0, TOP).map((column) => (
          <tr key={column}>
            <th scope="row" class="mono">
              {visible(labels[column]!)}
            </th>
            <td class="number">{formatProbability(weights[column]!)}</td>
            <td class="bar">
              <span style={{ "--p": weights[column]! }} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** One pixel a weight; the style sheet enlarges it. */
function draw(canvas: HTMLCanvasElement, weights: ArrayLike<number>[]): void {
  const size = Math.max(1, weights.length);
  canvas.width = canvas.height = size;
  const paint = canvas.getContext("2d")!;
  paint.fillStyle = getComputedStyle(canvas).color;
  weights.forEach((row, y) => {
    for (let x = 0; x < row.length; x++) {
      paint.globalAlpha = Math.sqrt(row[x]!); // so that small weights can be seen
      paint.fillRect(x, y, 1, 1);
    }
  });
}
