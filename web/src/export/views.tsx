/** What the model did to predict the selected token: the prediction after each block, and attention. */
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { NoPrediction } from "../components/alternatives";
import { AttentionPanel, type AttentionMap } from "../components/attention";
import { LensPanel, type LensRow } from "../components/lens";
import type { TextToken } from "../components/tokens";
import { softmax, sortByProbability } from "../model/sampling";
import { tokenLabel } from "../model/tokenizer";
import type { Session, Window } from "./session";

const LENS_TOP = 4;

interface Prediction {
  token: TextToken | undefined;
  window: Window | null;
  /** The position in the window from which the token was predicted; null if it was not. */
  position: number | null;
}

/** The selected token; none while the model writes. */
function usePrediction(session: Session): Prediction {
  const index = session.running.value ? null : session.selected.value;
  const tokens = session.tokens.value;
  const window = useMemo(() => (index === null ? null : session.windowOf(index)), [index, tokens]);
  const position = window === null || index === null ? -1 : index - 1 - window.start;
  const read = window !== null && position >= 0 && position < window.cache.length; // a stop may leave the end unread
  return { token: index === null ? undefined : tokens[index], window, position: read ? position : null };
}

export function Lens({ session }: { session: Session }) {
  const { token, window, position } = usePrediction(session);
  return <LensPanel token={token} rows={token && window && position !== null ? lensRows(session, window, position, token.id) : null} />;
}

function lensRows(session: Session, window: Window, position: number, token: number): LensRow[] {
  const { model, tokenizer } = session.loaded;
  return Array.from({ length: model.config.depth + 1 }, (_, blocks) => {
    const logits = model.readout(window.cache, position, blocks).slice(0, tokenizer.vocabSize);
    const probabilities = softmax(logits);
    const top = sortByProbability(probabilities).slice(0, LENS_TOP);
    return {
      blocks,
      chosen: probabilities[token]!,
      top: top.map((id) => ({ id, text: tokenLabel(tokenizer, id), probability: probabilities[id]! })),
    };
  });
}

export function Attention({ session }: { session: Session }) {
  const { depth } = session.loaded.model.config;
  const block = useSignal(depth - 1);
  const tokens = session.tokens.value;
  const { token, window, position } = usePrediction(session);
  const weights = useMemo(() => window && attention(session, window, block.value), [window, block.value]);
  const maps = window && weights && position !== null && {
    tokens: tokens.slice(window.start, window.start + window.cache.length),
    weights,
    query: position,
    onQuery: (row: number) => (session.selected.value = Math.min(window.start + row + 1, tokens.length - 1)),
  };
  return (
    <AttentionPanel depth={depth} block={block.value} onBlock={(value) => (block.value = value)} maps={maps || null}>
      <NoPrediction of={token} />
    </AttentionPanel>
  );
}

function attention(session: Session, { cache }: Window, block: number): AttentionMap[] {
  const { model } = session.loaded;
  return Array.from({ length: model.config.heads }, (_, head) =>
    Array.from({ length: cache.length }, (_, position) => model.attentionWeights(cache.layers[block]!, head, position)),
  );
}
