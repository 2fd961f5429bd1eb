/** One model: the text it generates, and how it came to the token that is selected. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { stream } from "../../api";
import { ErrorBox } from "../../components/error-box";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import { Alternatives } from "./alternatives";
import { Attention } from "./attention";
import { Lens } from "./lens";
import { TokenText } from "./tokens";
import { visible, type GeneratedToken, type GenerateItem, type LensRow, type Model, type Models, type Sampling, type Token } from "./types";

export interface Choice {
  run: string;
  checkpoint: string;
}
/** A press of the button; null before the first and after a stop. */
export type Go = { prompt: string; sampling: Sampling } | null;

interface Props {
  models: Models;
  choice: Choice;
  onChoice: (choice: Choice) => void;
  go: Go;
  onEnd: () => void;
}

export function ModelPanel({ models, choice, onChoice, go, onEnd }: Props) {
  const tokens = useSignal<(Token | GeneratedToken)[]>([]);
  const source = useSignal<Choice>(choice);
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
          else tokens.value = [...tokens.value, item];
        }
      } catch (problem) {
        if (!abort.signal.aborted) error.value = problem;
      }
      if (!abort.signal.aborted) onEnd();
    })();
    return () => abort.abort();
  }, [go]); // not when the choice changes: the text stays until the next press
  const last = tokens.value.length - 1;
  const index = Math.min(selected.value ?? last, last);
  return (
    <section class="model-panel">
      <ModelChoice models={models.models} choice={choice} onChoice={onChoice} />
      <ErrorBox error={error.value} />
      <Output tokens={tokens.value} index={index} onSelect={(i) => (selected.value = i)} />
      {notices.value.map((notice) => <p key={notice} class="faint">{notice}</p>)}
      {index >= 0 && (
        <>
          <LensPanel source={source.value} tokens={tokens.value} index={index} />
          <AttentionPanel source={source.value} model={models.models.find((one) => one.name === source.value.run)} most={models.limits.map}
            tokens={tokens.value} index={index} onSelect={(i) => (selected.value = i)} />
        </>
      )}
    </section>
  );
}

function ModelChoice({ models, choice: { run, checkpoint }, onChoice }: { models: Model[]; choice: Choice; onChoice: (choice: Choice) => void }) {
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

const isGenerated = (token: Token | undefined): token is GeneratedToken => token !== undefined && "alternatives" in token;

function Output({ tokens, index, onSelect }: { tokens: (Token | GeneratedToken)[]; index: number; onSelect: (index: number) => void }) {
  const hovered = useSignal<number | null>(null);
  const token = tokens[Math.min(hovered.value ?? index, tokens.length - 1)];
  const share = (i: number) => {
    const one = tokens[i];
    return isGenerated(one) ? one.probability : null;
  };
  return (
    <div class="panel generated">
      <div>
        <h2>{t("playground.output")}</h2>
        <div class="output-text">
          {tokens.length === 0 && <p class="faint">{t("playground.empty")}</p>}
          <TokenText
            label={t("playground.output")}
            tokens={tokens}
            selected={index}
            onSelect={onSelect}
            onHover={(i) => (hovered.value = i)}
            strength={(i) => surprise(share(i))}
            share={share}
            kind={(i) => (isGenerated(tokens[i]) ? "surprise" : "prompt")}
          />
        </div>
        <p class="faint">{t("playground.hint")}</p>
      </div>
      <div>
        <h3>{token ? t("playground.alternatives_to", { token: visible(token) }) : t("playground.alternatives")}</h3>
        <div class="alternatives-box">
          {isGenerated(token) ? <Alternatives chosen={token.id} alternatives={token.alternatives} /> : token && <p class="faint">{t("playground.is_prompt")}</p>}
        </div>
      </div>
    </div>
  );
}

/** How surprising a token was, from 0 to 1 for eight bits and more. */
const surprise = (share: number | null) => (share === null ? null : Math.min(1, -Math.log2(share) / 8));

/** The tokens that the model saw when it chose the one at an index. */
function seenBefore(tokens: (Token | GeneratedToken)[], index: number): Token[] {
  const token = tokens[index];
  return tokens.slice(isGenerated(token) ? token.start : 0, index);
}

interface Selection {
  source: Choice;
  tokens: (Token | GeneratedToken)[];
  index: number;
}

function LensPanel({ source, tokens, index }: Selection) {
  const asked = useSignal<object | null>(null);
  const before = seenBefore(tokens, index).map(({ id }) => id), chosen = tokens[index]!;
  const key = JSON.stringify([source, before, chosen.id]);
  useEffect(() => {
    asked.value = before.length ? { ...source, tokens: before, chosen: chosen.id } : null;
  }, [key]);
  const result = useResult<{ rows: LensRow[] }>("playground/lens", asked, 200).value;
  return (
    <div class="panel lens-panel">
      <h2>{t("playground.lens")}</h2>
      <p class="faint">{t("playground.lens_hint", { token: visible(chosen) })}</p>
      <ErrorBox error={result.error} />
      {before.length === 0 ? <p class="faint">{t("playground.first_token")}</p> : result.data && <Lens rows={result.data.rows} chosen={chosen} />}
    </div>
  );
}

interface AttentionProps extends Selection {
  model: Model | undefined;
  most: number;
  onSelect: (index: number) => void;
}

function AttentionPanel({ source, tokens, index, model, most, onSelect }: AttentionProps) {
  const layer = useSignal(0);
  const depth = model?.depth ?? 1;
  // All tokens of the window that the selected one was generated in, or the last of them.
  const token = tokens[index];
  const start = isGenerated(token) ? token.start : 0;
  const same = tokens.filter((one) => !isGenerated(one) || one.start <= start).length;
  const stop = Math.max(index + 1, Math.min(same, start + (model?.context ?? most)));
  const first = Math.max(start, stop - most);
  const shown = tokens.slice(first, stop);
  const asked = useSignal<object | null>(null);
  const key = JSON.stringify([source, shown.map(({ id }) => id), layer.value]);
  useEffect(() => {
    asked.value = { ...source, tokens: shown.map(({ id }) => id), layer: Math.min(layer.value, depth - 1) };
  }, [key]);
  const result = useResult<{ weights: number[][][] }>("playground/attention", asked, 300).value;
  const weights = result.data?.weights;
  return (
    <div class="panel attention-panel">
      <h2>{t("playground.attention")}</h2>
      <label class="field">
        {t("playground.layer")}
        <select value={layer.value} onChange={(event) => (layer.value = Number(event.currentTarget.value))}>
          {Array.from({ length: depth }, (_, i) => i).map((i) => <option key={i} value={i}>{t("playground.block", { number: i + 1 })}</option>)}
        </select>
      </label>
      <ErrorBox error={result.error} />
      {weights && weights[0]!.length <= shown.length && (
        <Attention tokens={shown} weights={weights} query={Math.max(0, index - first)} onQuery={(i) => onSelect(first + i)} />
      )}
    </div>
  );
}
