/** One model: the text it generates, and how it came to the token that is selected. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { stream } from "../../api";
import { NoPrediction } from "../../components/alternatives";
import { AttentionPanel, type AttentionMap } from "../../components/attention";
import { ErrorBox } from "../../components/error-box";
import { LensPanel, type LensRow } from "../../components/lens";
import type { Sampling } from "../../components/sampling";
import { TextPanels } from "../../components/text-panels";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import type { GenerateItem, Model, Models, PlaygroundToken } from "./types";

/** A checkpoint of a run. */
export interface Source {
  run: string;
  checkpoint: string;
}
/** A press of the button; null before the first and after a stop. */
export type Go = { prompt: string; sampling: Sampling } | null;

interface Props {
  models: Models;
  choice: Source;
  onChoice: (choice: Source) => void;
  go: Go;
  onEnd: () => void;
}

export function ModelPanel({ models, choice, onChoice, go, onEnd }: Props) {
  const tokens = useSignal<PlaygroundToken[]>([]);
  const source = useSignal<Source>(choice);
  const selected = useSignal<number | null>(null);
  const notices = useSignal<string[]>([]);
  const error = useSignal<unknown>(null);
  useEffect(() => {
    if (!go) return undefined;
    const abort = new AbortController();
    tokens.value = [];
    selected.value = error.value = null;
    notices.value = [];
    source.value = choice;
    (async () => {
      try {
        for await (const item of stream<GenerateItem>("playground/generate", { ...choice, prompt: go.prompt, ...go.sampling }, abort.signal)) {
          if ("prompt" in item) tokens.value = item.prompt;
          else if ("finish_reason" in item) notices.value = item.notices;
          else tokens.value = [...tokens.value, { ...item, generated: true }];
        }
      } catch (problem) {
        if (!abort.signal.aborted) error.value = problem;
      }
      if (!abort.signal.aborted) onEnd();
    })();
    return () => abort.abort();
  }, [go]); // not when the choice changes: the text stays until the next press
  const last = tokens.value.length - 1;
  const index = last < 0 ? null : Math.min(selected.value ?? last, last);
  const onSelect = (chosen: number) => (selected.value = chosen);
  const selection = { source: source.value, tokens: tokens.value, index };
  return (
    <section class="model-panel">
      <ModelChoice models={models.models} choice={choice} onChoice={onChoice} />
      <ErrorBox error={error.value} />
      <div class="halves">
        <TextPanels tokens={tokens.value} selected={index} onSelect={onSelect}>
          {notices.value.map((notice) => (
            <p key={notice} class="faint">
              {notice}
            </p>
          ))}
        </TextPanels>
      </div>
      <Lens {...selection} />
      <Attention {...selection} model={models.models.find((one) => one.name === source.value.run)} most={models.limits.map} onSelect={onSelect} />
    </section>
  );
}

function ModelChoice({ models, choice: { run, checkpoint }, onChoice }: { models: Model[]; choice: Source; onChoice: (choice: Source) => void }) {
  const model = models.find((one) => one.name === run);
  return (
    <div class="row">
      <label class="field">
        {t("playground.model")}
        <select value={run} onChange={(event) => onChoice({ run: event.currentTarget.value, checkpoint: "best" })}>
          {models.map(({ name }) => <option key={name}>{name}</option>)}
        </select>
      </label>
      <label class="field">
        {t("playground.checkpoint")}
        <select value={checkpoint} onChange={(event) => onChoice({ run, checkpoint: event.currentTarget.value })}>
          <option value="best">{t("playground.best", { step: model?.best ?? model?.steps.at(-1) ?? "" })}</option>
          <option value="last">{t("playground.last", { step: model?.steps.at(-1) ?? "" })}</option>
          {model?.steps.map((step) => <option key={step} value={String(step)}>{t("runs.at_step", { step })}</option>)}
        </select>
      </label>
    </div>
  );
}

interface Selection {
  source: Source;
  tokens: PlaygroundToken[];
  /** The token that is selected; null while there is no text. */
  index: number | null;
}

/** The index of the first token that the model saw when it chose this one, or would have for one of the prompt. */
function windowStart(tokens: PlaygroundToken[], index: number): number {
  return tokens[index]!.start ?? tokens.find(({ start }) => start !== undefined)?.start ?? 0;
}

const ids = (tokens: PlaygroundToken[]) => tokens.map(({ id }) => id);

/** Ask whenever the request changes; null asks nothing. */
function useAnswer<Answer>(name: string, request: object | null, delay: number) {
  const asked = useSignal<object | null>(null);
  useEffect(() => void (asked.value = request), [JSON.stringify(request)]);
  return useResult<Answer>(name, asked, delay).value;
}

function Lens({ source, tokens, index }: Selection) {
  const before = index === null ? [] : tokens.slice(windowStart(tokens, index), index);
  const token = index === null ? undefined : tokens[index];
  const request = before.length ? { ...source, tokens: ids(before), chosen: token!.id } : null;
  const { data, error } = useAnswer<{ rows: LensRow[] }>("playground/lens", request, 200);
  return <LensPanel token={token} rows={request && data?.rows} error={error} />;
}

interface AttentionProps extends Selection {
  model: Model | undefined;
  most: number;
  onSelect: (index: number) => void;
}

function Attention({ source, tokens, index, model, most, onSelect }: AttentionProps) {
  const chosen = useSignal(0);
  const depth = model?.depth ?? 1;
  const block = Math.min(chosen.value, depth - 1);
  const { first, seen } = seenTogether(tokens, index, model?.context ?? most, most);
  // The token before the selected one predicted it.
  const query = index === null ? -1 : index - 1 - first;
  const request = query >= 0 ? { ...source, tokens: ids(seen), layer: block } : null;
  const { data, error } = useAnswer<{ weights: AttentionMap[] }>("playground/attention", request, 300);
  // Answers come later than tokens: a map may have fewer, or be of another text.
  const count = data?.weights[0]!.length ?? 0;
  const onQuery = (row: number) => onSelect(Math.min(first + row + 1, tokens.length - 1));
  return (
    <AttentionPanel
      depth={depth}
      block={block}
      onBlock={(value) => (chosen.value = value)}
      error={error}
      maps={request && data && count <= seen.length ? { tokens: seen, weights: data.weights, query: Math.min(query, count - 1), onQuery } : null}
    >
      {!request && <NoPrediction of={index === null ? undefined : tokens[index]} />}
    </AttentionPanel>
  );
}

/** The tokens that the model saw together when it chose the one at an index, and after it; of a long window, a part. */
function seenTogether(tokens: PlaygroundToken[], index: number | null, context: number, most: number) {
  if (index === null) return { first: 0, seen: [] };
  const start = windowStart(tokens, index);
  const end = tokens.filter((one) => (one.start ?? 0) <= start).length;
  const stop = Math.min(end, start + context, Math.max(index, start + most));
  const first = Math.max(start, stop - most);
  return { first, seen: tokens.slice(first, stop) };
}
