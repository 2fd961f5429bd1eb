/** Attention per head: a map for each head of a block, and what one token attends to. */
import "./model-parts.css";
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { t } from "../i18n";
import { Bar } from "./bar";
import { Choice } from "./choice";
import { ErrorBox } from "./error-box";
import { formatPercent } from "./format";
import { IndexSelect } from "./index-select";
import { isDark, themeColor } from "./theme";
import { TokenText } from "./token-text";
import { visible, type Token } from "./tokens";

/** map[query][key]; a row may end with its last weight that is not 0. */
export type AttentionMap = readonly ArrayLike<number>[];

interface Maps {
  /** The tokens that the model saw together. */
  tokens: readonly Token[];
  /** weights[head] of the block. */
  weights: readonly AttentionMap[];
  /** The token whose attention is shown. */
  query: number;
  onQuery: (index: number) => void;
}

interface Props {
  depth: number;
  block: number;
  onBlock: (block: number) => void;
  error?: unknown;
  /** Null while there is nothing to show; then the children say why. */
  maps: Maps | null;
  /** Said about the maps. */
  note?: string;
  children?: ComponentChildren;
}

const TOP = 6;

export function AttentionPanel({ depth, block, onBlock, error, maps, note, children }: Props) {
  return (
    <section class="panel attention">
      <h2>{t("model.attention")}</h2>
      <IndexSelect label={t("model.block")} count={depth} value={block} onChange={onBlock} />
      <ErrorBox error={error} />
      {note && <p class="faint">{note}</p>}
      {maps ? <Heads {...maps} /> : children}
    </section>
  );
}

function Heads({ tokens, weights, query, onQuery }: Maps) {
  const head = useSignal(0);
  const pointed = useSignal<{ row: number; column?: number } | null>(null);
  const shown = Math.min(head.value, weights.length - 1);
  const map = weights[shown]!;
  const { row, column } = pointed.value && pointed.value.row < map.length ? pointed.value : { row: query };
  const weight = column === undefined ? undefined : map[row]![column];
  return (
    <>
      <div class="heads">
        <Choice
          label={t("model.attention.heads")}
          value={String(shown)}
          options={weights.map((one, i) => ({
            value: String(i),
            label: (
              <>
                <Heatmap map={one} />
                {t("model.attention.head", { number: i + 1 })}
              </>
            ),
          }))}
          onChange={(value) => (head.value = Number(value))}
        />
      </div>
      <div class="halves">
        <div>
          <Heatmap map={map} marked={row} onPoint={(at) => (pointed.value = at)} onSelect={onQuery} />
          <p class="faint pointed">
            {weight === undefined ? t("model.attention.axes") : `${visible(tokens[row]!)} → ${visible(tokens[column!]!)}: ${formatPercent(weight)}`}
          </p>
        </div>
        <Strongest tokens={tokens} weights={map[row]!} row={row} />
      </div>
      <TokenText
        label={t("model.attention.tokens")}
        tokens={tokens.slice(0, map.length).map(({ id, text }) => ({ id, text }))}
        selected={query}
        onSelect={onQuery}
        onHover={(index) => (pointed.value = index === null ? null : { row: index })}
        weights={map[row]}
      />
    </>
  );
}

/** The tokens that one token attends to most. */
function Strongest({ tokens, weights, row }: { tokens: readonly Token[]; weights: ArrayLike<number>; row: number }) {
  const columns = Array.from(weights, (_, column) => column).filter((column) => weights[column]! > 0);
  columns.sort((a, b) => weights[b]! - weights[a]!);
  return (
    <table class="strongest">
      <caption>{t("model.attention.of", { token: visible(tokens[row]!) })}</caption>
      <tbody>
        {columns.slice(0, TOP).map((column) => (
          <tr key={column}>
            <th scope="row" class="mono">
              {visible(tokens[column]!)}
            </th>
            <td>
              <Bar share={weights[column]!} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

interface HeatmapProps {
  map: AttentionMap;
  marked?: number;
  onPoint?: (at: { row: number; column: number } | null) => void;
  onSelect?: (row: number) => void;
}

/** A map as an image, one pixel a weight: rows are queries, columns keys. A small one that nobody points at is decoration. */
function Heatmap({ map, marked, onPoint, onSelect }: HeatmapProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const size = map.length;
  useEffect(() => {
    const context = canvas.current!.getContext("2d")!;
    const [red, green, blue] = themeColor("--accent").match(/\d+/g)!.map(Number);
    const image = context.createImageData(size, size);
    map.forEach((row, y) => {
      for (let x = 0; x < row.length; x++) {
        // The square root makes small weights visible.
        image.data.set([red!, green!, blue!, 255 * Math.sqrt(row[x]!)], 4 * (y * size + x));
      }
    });
    context.putImageData(image, 0, 0);
  }, [map, isDark.value]);
  const at = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const index = (share: number) => Math.min(size - 1, Math.max(0, Math.floor(share * size)));
    return { row: index((event.clientY - box.top) / box.height), column: index((event.clientX - box.left) / box.width) };
  };
  const alternative = onPoint ? { role: "img" as const, "aria-label": t("model.attention.map", { count: size }) } : { "aria-hidden": true };
  return (
    <span
      class="heatmap"
      onPointerMove={onPoint && ((event) => onPoint(at(event)))}
      onPointerLeave={onPoint && (() => onPoint(null))}
      onClick={onSelect && ((event) => onSelect(at(event).row))}
    >
      <canvas ref={canvas} width={size} height={size} {...alternative} />
      {marked !== undefined && <span class="marker" style={{ top: `${(100 * marked) / size}%`, height: `${100 / size}%` }} />}
    </span>
  );
}
