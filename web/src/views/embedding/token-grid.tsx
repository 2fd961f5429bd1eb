/** The tokens of a batch as a table (B, S): the text and the id of each, and padding. */
import { useRef } from "preact/hooks";
import { neighbor } from "../../components/cells";
import { visible } from "../../components/tokens";
import { t } from "../../i18n";
import type { Place, TextBatch } from "./types";

export function TokenGrid({ batch, at, onMove }: { batch: TextBatch; at: Place; onMove: (changes: Partial<Place>) => void }) {
  const root = useRef<HTMLDivElement>(null);
  const length = batch.ids[0]!.length;
  const chosen = batch.ids[at.b]![at.s];

  function onKeyDown(event: KeyboardEvent) {
    const index = at.b * length + at.s;
    const next = neighbor(index, [batch.ids.length, length], event.key);
    if (next === index) return;
    event.preventDefault();
    onMove({ b: Math.floor(next / length), s: next % length });
    root.current?.querySelector<HTMLElement>(`[data-index="${next}"]`)?.focus();
  }

  return (
    <div class="scroll" ref={root} onKeyDown={onKeyDown}>
      <table class="tokens">
        <caption>
          ids ({batch.ids.length}, {length})
        </caption>
        <thead>
          <tr>
            <td aria-hidden="true">b↓ s→</td>
            {batch.ids[0]!.map((_, s) => (
              <th key={s} scope="col">
                {s}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {batch.ids.map((row, b) => (
            <tr key={b}>
              <th scope="row">{b}</th>
              {row.map((id, s) => {
                const isReal = batch.mask[b]![s]!;
                const text = isReal ? visible({ text: batch.tokens[b]![s]! }) : t("embedding.pad");
                const isChosen = b === at.b && s === at.s;
                return (
                  <td key={s}>
                    <button
                      type="button"
                      data-index={b * length + s}
                      class={["token", !isReal && "padding", id === chosen && "lit"].filter(Boolean).join(" ")}
                      aria-current={isChosen ? "true" : undefined}
                      tabIndex={isChosen ? 0 : -1}
                      onClick={() => onMove({ b, s })}
                      onFocus={() => !isChosen && onMove({ b, s })}
                      onPointerEnter={() => onMove({ b, s })}
                    >
                      <span>{text}</span>
                      <small>{id}</small>
                      <span class="hidden">
                        , b={b} s={s}
                      </span>
                    </button>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
