/** One model: the text it generates, and how it came to the token that is selected. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { stream } from "../../api";
import { NoPrediction } from "../../components/alternatives";
import { AttentionPanel, type AttentionMap } from "../../components/attention";
import { ErrorBox } from "../../components/error-box";
import { LensPanel, type LensRow } from "../../components/lens";
import type { Sampling } from "../../components/sampling";
import { TextPanels } from "../../components/text-panels";
import type { TextToken } from "../../components/tokens";
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
  /** Generate again, after the connection was lost. */
  onRetry: () => void;
}

export function ModelPanel({ models, choice, onChoice, go, onEnd, onRetry }: Props) {
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
      <ErrorBox error={error.value} retry={onRetry} />
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

/** Ask whenever the request changes; null asks nothing. The answer comes with the subject of its own request, since it
 * may be of an earlier one; null if it is of another model. */
function useAnswer<Answer, Subject extends object>(name: string, request: Source | null, subject: Subject, delay: number) {
  const asked = useSignal<Source | null>(null);
  const subjects = useRef(new WeakMap<object, Subject>());
  useEffect(() => {
    if (request) subjects.current.set(request, subject);
    asked.value = request;
  }, [JSON.stringify(request)]);
  const { data, answered, error } = useResult<Answer>(name, asked, delay).value;
  const of = answered as Source | null;
  if (!request || !data || of?.run !== request.run || of.checkpoint !== request.checkpoint) return { answer: null, error };
  return { answer: { ...data, subject: subjects.current.get(of)! }, error };
}

function Lens({ source, tokens, index }: Selection) {
  const before = index === null ? [] : tokens.slice(windowStart(tokens, index), index);
  const token = index === null ? undefined : tokens[index];
  const request = before.length ? { ...source, tokens: ids(before), chosen: token!.id } : null;
  const { answer, error } = useAnswer<{ rows: LensRow[] }, { token?: TextToken }>("playground/lens", request, { token }, 200);
  return <LensPanel token={answer ? answer.subject.token : token} rows={request && answer?.rows} error={error} />;
}

interface AttentionProps extends Selection {
  model: Model | undefined;
  /** The tokens of a map; of a longer window, the map is a part. */
  most: number;
  onSelect: (index: number) => void;
}

/** What a map is of: the tokens of its rows, the index of the first, and the row that is selected. */
interface MapSubject {
  block: number;
  shown: PlaygroundToken[];
  first: number;
  query: number;
  /** The tokens that the model saw. */
  seen: number;
}

function Attention({ source, tokens, index, model, most, onSelect }: AttentionProps) {
  const chosen = useSignal(0);
  const depth = model?.depth ?? 1;
  const block = Math.min(chosen.value, depth - 1);
  const { start, end } = windowOf(tokens, index, model?.context ?? most);
  // The part of a long window that ends with the token before the selected one, which predicted it, or begins the window.
  const stop = Math.min(end, Math.max(index ?? 0, start + most));
  const first = Math.max(start, stop - most);
  const query = index === null ? -1 : index - 1 - first;
  const request = query >= 0 ? { ...source, tokens: ids(tokens.slice(start, end)), layer: block, stop: stop - start } : null;
  const subject = { block, shown: tokens.slice(first, stop), first, query, seen: end - start };
  const { answer, error } = useAnswer<{ weights: AttentionMap[] }, MapSubject>("playground/attention", request, subject, 300);
  const of = answer?.subject;
  const maps = of && of.block === block && {
    tokens: of.shown,
    weights: answer.weights,
    // The present selection, as far as the map has it.
    query: index !== null && index > of.first && index - 1 - of.first < of.shown.length ? index - 1 - of.first : of.query,
    onQuery: (row: number) => onSelect(Math.min(of.first + row + 1, tokens.length - 1)),
  };
  return (
    <AttentionPanel depth={depth} block={block} onBlock={(value) => (chosen.value = value)} error={error} maps={maps || null}
      note={maps && of.seen > of.shown.length ? t("playground.part", { shown: of.shown.length, seen: of.seen }) : undefined}
    >
      {!request ? (
        <NoPrediction of={index === null ? undefined : tokens[index]} />
      ) : (
        !error && <p class="faint">{t("shell.loading")}</p>
      )}
    </AttentionPanel>
  );
}

/** The tokens that the model saw together when it chose the one at an index, and after it: from start to before end. */
function windowOf(tokens: PlaygroundToken[], index: number | null, context: number) {
  if (index === null) return { start: 0, end: 0 };
  const start = windowStart(tokens, index);
  const end = tokens.filter((one) => (one.start ?? 0) <= start).length;
  return { start, end: Math.min(end, start + context) };
}
