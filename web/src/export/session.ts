/** The text of the page: the prompt, its settings, and the tokens that the model adds to it. */
import { signal } from "@preact/signals";
import type { Cache } from "../model/gpt";
import { generate, Sequence, type FinishReason, type GenerationSettings } from "../model/generate";
import { samplingProbabilities, softmax, sortByProbability } from "../model/sampling";
import { DecodeStream, tokenLabel, type Tokenizer } from "../model/tokenizer";
import type { Alternative, TextToken } from "../components/tokens";
import type { Loaded } from "./load";

const ALTERNATIVES = 8;
const PAINT_MILLISECONDS = 25;

export interface SessionToken extends TextToken {
  /** The first token that the model saw when it predicted this one. */
  windowStart: number;
}

/** The tokens that the model saw together: the index of the first, and what it computed for them. */
export interface Window {
  start: number;
  cache: Cache;
}

export interface Outcome {
  tokens: number;
  seconds: number;
  reason: FinishReason | "stopped";
}

/** One text at a time; a new one replaces it. */
export class Session {
  readonly tokens = signal<SessionToken[]>([]);
  readonly running = signal(false);
  readonly error = signal<unknown>(null);
  readonly outcome = signal<Outcome | null>(null);
  readonly selected = signal<number | null>(null);
  private sequence: Sequence | null = null;
  private window: Window | null = null;
  private texts = 0;

  constructor(readonly loaded: Loaded) {}

  stop(): void {
    this.running.value = false;
  }

  /** The window in which a token was predicted. An earlier one is computed again, and kept until another is asked for. */
  windowOf(index: number): Window | null {
    const tokens = this.tokens.value;
    if (this.sequence === null || tokens[index] === undefined) return null;
    const start = tokens[index].windowStart;
    if (this.window?.start !== start) {
      const cache = this.loaded.model.newCache(this.loaded.model.config.context);
      const end = tokens.findLastIndex((token) => token.windowStart === start);
      for (const { id } of tokens.slice(start, end + 1).slice(0, this.loaded.model.config.context)) {
        this.loaded.model.advance(id, cache);
      }
      this.window = { start, cache };
    }
    return this.window;
  }

  async start(text: string, settings: GenerationSettings): Promise<void> {
    const { model, tokenizer } = this.loaded;
    const own = ++this.texts;
    this.error.value = this.outcome.value = this.selected.value = null;
    try {
      const prompt = tokenizer.encode(text);
      this.sequence = new Sequence(model, prompt.length ? prompt : [tokenizer.eos], tokenizer.vocabSize, tokenizer.eos);
      this.running.value = true;
      await this.run(this.sequence, settings, () => this.running.value && this.texts === own);
    } catch (error) {
      this.error.value = error;
    } finally {
      if (this.texts === own) this.running.value = false;
    }
  }

  private async run(sequence: Sequence, settings: GenerationSettings, goesOn: () => boolean): Promise<void> {
    const { tokenizer } = this.loaded;
    const stream = new DecodeStream(tokenizer);
    const prompt = sequence.tokens.length;
    let { windowStart } = sequence;
    const shown = sequence.tokens.map((token) => shownToken(tokenizer, token, stream.push(token), windowStart));
    const generating = generate(sequence, settings, tokenizer.eos);
    const start = performance.now();
    let reason: Outcome["reason"] = "stopped";
    for (let painted = -Infinity; goesOn(); ) {
      const { value: step, done } = generating.next();
      if (done) break;
      if (step !== null) {
        if (step.token !== null) {
          const token = shownToken(tokenizer, step.token, stream.push(step.token), windowStart);
          shown.push({ ...token, generated: true, ...prediction(tokenizer, step.logits, step.token, step.seen, settings) });
        }
        windowStart = sequence.windowStart; // it restarts when the context is full
        if (step.finishReason !== null) reason = step.finishReason;
      } else {
        this.predictPromptToken(sequence, shown, settings);
      }
      if (performance.now() - painted > PAINT_MILLISECONDS) {
        this.tokens.value = shown.slice();
        await new Promise((resume) => setTimeout(resume)); // lets the page paint and react
        painted = performance.now();
      }
    }
    if (sequence !== this.sequence) return; // another text has been started
    const seconds = (performance.now() - start) / 1000;
    // So that the last token has attention, too. After a stop, much of a long prompt may be left: it stays unread.
    while (reason !== "stopped" && sequence.pending > 0) sequence.advance();
    this.window = { start: sequence.windowStart, cache: sequence.cache };
    this.tokens.value = shown;
    this.outcome.value = { tokens: shown.length - prompt, seconds, reason };
    const last = shown.length - 1, read = sequence.windowStart + sequence.cache.length;
    this.selected.value ??= shown[last]!.probability === undefined ? Math.min(read, last) : last;
  }

  /** How likely the model found the next token of the prompt. */
  private predictPromptToken(sequence: Sequence, shown: SessionToken[], settings: GenerationSettings): void {
    const next = sequence.windowStart + sequence.cache.length;
    if (!shown[next] || shown[next].probability !== undefined) return; // already known: the window was restarted
    const { tokenizer } = this.loaded;
    shown[next] = { ...shown[next], ...prediction(tokenizer, sequence.logits(), shown[next].id, sequence.distinct(next), settings) };
  }
}

function shownToken(tokenizer: Tokenizer, id: number, text: string, windowStart: number): SessionToken {
  if (id === tokenizer.eos) return { id, windowStart, text: "⟨start⟩" }; // only an empty prompt has it
  return { id, windowStart, text: tokenLabel(tokenizer, id), shown: text };
}

function prediction(tokenizer: Tokenizer, logits: Float64Array, token: number, seen: ReadonlySet<number>, settings: GenerationSettings) {
  const probabilities = softmax(logits);
  const sampled = samplingProbabilities(logits, settings, seen);
  const top = sortByProbability(probabilities).slice(0, ALTERNATIVES);
  const listed = top.includes(token) ? top : [...top.slice(0, -1), token];
  const alternatives = listed.map((id): Alternative => ({ id, text: tokenLabel(tokenizer, id), probability: probabilities[id]!, sampled: sampled[id]! }));
  return { probability: probabilities[token]!, alternatives };
}
