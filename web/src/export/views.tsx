/** What the model did to predict the selected token: alternatives, the prediction after each block, and attention. */
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { AttentionMap } from "../components/attention-map";
import { LensTable, type LensRow } from "../components/lens-table";
import { formatProbability, visible } from "../components/token-label";
import { t } from "../i18n";
import { softmax, sortByProbability } from "../model/sampling";
import { tokenLabel } from "../model/tokenizer";
import type { Session, Window } from "./session";

const LENS_TOP = 4;

/** The window of the selected token, and the position in it from which it was predicted; null if it was not. */
function usePrediction(session: Session): { window: Window | null; position: number | null } {
  const selected = session.selected.value;
  const tokens = session.tokens.value;
  const index = selected === null || session.running.value ? null : selected;
  const window = useMemo(() => (index === null ? null : session.windowOf(index)), [index, tokens]);
  const position = window === null || index === null ? -1 : index - 1 - window.start;
  return { window, position: position >= 0 ? position : null };
}

function Nothing({ session }: { session: Session }) {
  const isOutside = session.selected.value !== null && !session.running.value;
  return <p class="faint">{t(isOutside ? "export.notPredicted" : "export.waiting")}</p>;
}

export function Alternatives({ session }: { session: Session }) {
  const index = session.selected.value;
  const token = index === null ? undefined : session.tokens.value[index];
  return (
    <section class="panel alternatives">
      <h2>{token ? t("export.alternatives.of", { token: visible(token.label) }) : t("export.alternatives")}</h2>
      {token && token.alternatives.length > 0 ? (
        <table class="bars">
          <thead>
            <tr>
              <th scope="col">{t("export.alternatives.token")}</th>
              <th scope="colgroup" colSpan={2}>
                {t("export.alternatives.model")}
              </th>
              <th scope="col" class="number">
                {t("export.alternatives.sampling")}
              </th>
            </tr>
          </thead>
          <tbody>
            {token.alternatives.map((one) => (
              <tr key={one.token} class={one.token === token.token ? "chosen" : undefined}>
                <th scope="row" class="mono">
                  {visible(one.label)}
                </th>
                <td class="number">{formatProbability(one.model)}</td>
                <td class="bar">
                  <span style={{ "--p": one.model }} />
                </td>
                <td class="number">{formatProbability(one.sampling)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <Nothing session={session} />
      )}
    </section>
  );
}

export function Lens({ session }: { session: Session }) {
  const { window, position } = usePrediction(session);
  const index = session.selected.value;
  const token = index === null ? undefined : session.tokens.value[index];
  return (
    <section class="panel lens-panel">
      <h2>{t("model.lens.title")}</h2>
      <p class="faint">{t("model.lens.what")}</p>
      {window !== null && position !== null && token ? (
        <LensTable rows={lensRows(session, window, position, token.token)} target={token.label} />
      ) : (
        <Nothing session={session} />
      )}
    </section>
  );
}

function lensRows(session: Session, window: Window, position: number, token: number): LensRow[] {
  const { model, tokenizer } = session.loaded;
  return Array.from({ length: model.config.depth + 1 }, (_, level) => {
    const logits = model.readout(window.cache, position, level).slice(0, tokenizer.vocabSize);
    const probabilities = softmax(logits);
    const top = sortByProbability(probabilities).slice(0, LENS_TOP);
    return {
      label: level === 0 ? t("model.lens.embedding") : t("model.lens.block", { block: level }),
      probability: probabilities[token]!,
      top: top.map((one) => ({ label: tokenLabel(tokenizer, one), probability: probabilities[one]! })),
    };
  });
}

export function Attention({ session }: { session: Session }) {
  const { depth, heads } = session.loaded.model.config;
  const layer = useSignal(depth - 1);
  const head = useSignal(0);
  const tokens = session.tokens.value;
  const { window, position } = usePrediction(session);
  const start = window?.start ?? 0;
  const length = window?.cache.length ?? 0;
  const weights = useMemo(() => attention(session, window, layer.value, head.value), [window, layer.value, head.value]);
  return (
    <section class="panel attention">
      <h2>{t("model.attention.title")}</h2>
      <div class="row">
        <Choice label={t("model.attention.block")} count={depth} value={layer.value} onChange={(value) => (layer.value = value)} />
        <Choice label={t("model.attention.head")} count={heads} value={head.value} onChange={(value) => (head.value = value)} />
      </div>
      <AttentionMap
        labels={tokens.slice(start, start + length).map((token) => token.label)}
        weights={weights}
        selected={position}
        onSelect={(row) => (session.selected.value = Math.min(start + row + 1, tokens.length - 1))}
      />
    </section>
  );
}

function attention(session: Session, window: Window | null, layer: number, head: number): Float64Array[] {
  if (window === null) return [];
  const { cache } = window;
  const { model } = session.loaded;
  return Array.from({ length: cache.length }, (_, position) => model.attentionWeights(cache.layers[layer]!, head, position));
}

function Choice(props: { label: string; count: number; value: number; onChange: (value: number) => void }) {
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
