/** Attention per head: a map for each head of a block, and what one token attends to. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { formatPercent } from "../../components/format";
import { themeChanges, themeColor } from "../../components/theme";
import { t } from "../../i18n";
import { TokenText } from "./tokens";
import { visible, type Token } from "./types";

type Map = readonly (readonly number[])[];

interface Props {
  tokens: readonly Token[];
  /** weights[head][query][key] of the block. */
  weights: readonly Map[];
  /** The token whose attention is shown. */
  query: number;
  onQuery: (index: number) => void;
}

const TOP = 5;

export function Attention({ tokens, weights, query, onQuery }: Props) {
  const head = useSignal(0);
  const hovered = useSignal<number | null>(null);
  const shown = Math.min(head.value, weights.length - 1);
  const map = weights[shown]!;
  // Answers come later than tokens: a map may have fewer.
  const row = map[Math.min(hovered.value ?? query, map.length - 1)] ?? [];
  const current = Math.min(hovered.value ?? query, map.length - 1);
  const top = row.map((share, key) => ({ share, key })).sort((a, b) => b.share - a.share).slice(0, TOP);
  return (
    <>
      <div class="heads" role="group" aria-label={t("playground.heads")}>
        {weights.map((one, i) => (
          <button key={i} type="button" aria-pressed={i === shown} onClick={() => (head.value = i)}>
            <Heatmap map={one} marked={null} />
            {t("playground.head", { number: i + 1 })}
          </button>
        ))}
      </div>
      <div class="map">
        <div class="large">
          <Heatmap map={map} marked={current} onPoint={(index) => (hovered.value = index)} />
          <p class="faint">{t("playground.map_axes")}</p>
        </div>
        <div>
          <p>
            {t("playground.attends", { token: visible(tokens[current]!) })}{" "}
            {top.filter(({ share }) => share > 0).map(({ key, share }) => (
              <span key={key} class="chip mono">{visible(tokens[key]!)} <span class="faint">{formatPercent(share)}</span></span>
            ))}
          </p>
          <TokenText
            label={t("playground.map_tokens")}
            tokens={tokens.slice(0, map.length)}
            selected={query}
            onSelect={onQuery}
            onHover={(index) => (hovered.value = index)}
            strength={(index) => Math.sqrt(row[index] ?? 0)}
            share={(index) => row[index] ?? 0}
            kind={(index) => (index === current ? "query" : "key")}
          />
        </div>
      </div>
    </>
  );
}

/** A map as an image: rows are queries, columns keys. */
function Heatmap({ map, marked, onPoint }: { map: Map; marked: number | null; onPoint?: (query: number | null) => void }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = themeChanges.value;
  useEffect(() => {
    const size = map.length, context = canvas.current!.getContext("2d")!;
    const [red, green, blue] = themeColor("--accent").match(/\d+/g)!.map(Number);
    const image = context.createImageData(size, size);
    map.forEach((row, query) => row.forEach((share, key) => {
      // The square root makes small weights visible.
      image.data.set([red!, green!, blue!, 255 * Math.sqrt(share)], 4 * (query * size + key));
    }));
    context.putImageData(image, 0, 0);
  }, [map, theme]);
  const point = (event: PointerEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    onPoint?.(Math.min(map.length - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * map.length))));
  };
  return (
    <span class="heatmap" onPointerMove={onPoint && point} onPointerLeave={onPoint && (() => onPoint(null))}>
      <canvas ref={canvas} width={map.length} height={map.length} role="img" aria-label={t("playground.map", { count: map.length })} />
      {marked !== null && <span class="marker" style={{ top: `${(100 * marked) / map.length}%`, height: `${100 / map.length}%` }} />}
    </span>
  );
}
