/** Generate tokens: the window of tokens that the model sees, and one sampled token after another. */
import type { Cache, Gpt } from "./gpt";
import { uniform } from "./philox";
import { sampleToken, type SamplingSettings } from "./sampling";

export interface GenerationSettings extends SamplingSettings {
  maxNewTokens: number;
  seed: bigint;
  /** The index of the sample: another one gives another text for the same seed. */
  sample: number;
}

export type FinishReason = "stop_token" | "length";

/** A prompt and the tokens after it: `normscope.generate.sequence.TokenSequence`.
 *
 * When the window outgrows the context, it restarts with its most recent half.
 */
export class Sequence {
  readonly tokens: number[];
  /** Position of the first token that the model sees. */
  windowStart: number;
  readonly seen: Set<number>;
  readonly cache: Cache;

  constructor(
    private readonly model: Gpt,
    prompt: number[],
    private readonly vocabulary: number,
    private readonly stopToken: number,
  ) {
    const { context } = model.config;
    this.tokens = prompt.slice();
    this.windowStart = Math.max(0, prompt.length - context);
    this.seen = this.distinct(prompt.length);
    this.cache = model.newCache(context);
  }

  /** The distinct tokens before a position, without the stop token: those that a repetition penalty applies to. */
  distinct(end: number): Set<number> {
    return new Set(this.tokens.slice(0, end).filter((token) => token < this.vocabulary && token !== this.stopToken));
  }

  /** The number of tokens that the model has not seen. */
  get pending(): number {
    return this.tokens.length - this.windowStart - this.cache.length;
  }

  /** Feed the model the next token that it has not seen. */
  advance(): void {
    this.model.advance(this.tokens[this.windowStart + this.cache.length]!, this.cache);
  }

  /** The logits after the last token of the window. */
  logits(): Float64Array {
    return this.model.readout(this.cache).slice(0, this.vocabulary);
  }

  append(token: number): void {
    const { context } = this.model.config;
    this.tokens.push(token);
    this.seen.add(token);
    if (this.tokens.length - this.windowStart > context) {
      this.windowStart = this.tokens.length - Math.max(1, Math.floor(context / 2));
      this.cache.length = 0;
    }
  }
}

export interface Step {
  /** The sampled token; null for the stop token, which is not part of the text. */
  token: number | null;
  /** The logits that it was sampled from. */
  logits: Float64Array;
  /** The distinct tokens before it, to which the repetition penalty applied. */
  seen: ReadonlySet<number>;
  finishReason: FinishReason | null;
}

/** Generate step by step; yields null between the tokens of the prompt, so that the caller can pause. */
export function* generate(sequence: Sequence, settings: GenerationSettings, stopToken: number): Generator<Step | null> {
  for (let count = 1; ; count++) {
    while (sequence.pending > 0) {
      sequence.advance();
      if (sequence.pending > 0) yield null;
    }
    const logits = sequence.logits();
    const u = uniform(settings.seed, settings.sample, sequence.tokens.length);
    const seen = new Set(sequence.seen); // a copy: the token itself is added to the sequence before the step is looked at
    const token = sampleToken(logits, settings, u, seen);
    if (token === stopToken) {
      yield { token: null, logits, seen, finishReason: "stop_token" };
      return;
    }
    sequence.append(token);
    const finishReason = count === settings.maxNewTokens ? "length" : null;
    yield { token, logits, seen, finishReason };
    if (finishReason !== null) return;
  }
}
