/** `window.normscope`: what a script can do with the model of the page, with the names of `normscope.generate_text`. */
import { generate, Sequence, type FinishReason } from "../model/generate";
import { DecodeStream } from "../model/tokenizer";
import type { Loaded } from "./load";

interface Options {
  /** A text, or token ids. An empty prompt starts a new document. */
  prompt?: string | number[];
  max_new_tokens?: number;
  temperature?: number;
  top_k?: number | null;
  top_p?: number | null;
  min_p?: number | null;
  repetition_penalty?: number;
  seed?: number | string;
  sample?: number;
}

interface Generated {
  text: string;
  tokens: number[];
  finish_reason: FinishReason | null;
}

export function programmable({ model, tokenizer }: Loaded) {
  return {
    encode: (text: string): number[] => tokenizer.encode(text),
    decode: (tokens: number[]): string => {
      const stream = new DecodeStream(tokenizer);
      return tokens.map((token) => stream.push(token)).join("") + stream.finish(false);
    },
    /** The logits after a prompt of token ids. */
    logits: (tokens: number[]): number[] => {
      const sequence = new Sequence(model, tokens, tokenizer.vocabSize, tokenizer.eos);
      while (sequence.pending > 0) sequence.advance();
      return [...sequence.logits()];
    },
    generate: (options: Options = {}): Generated => {
      const prompt = typeof options.prompt === "string" ? tokenizer.encode(options.prompt) : (options.prompt ?? []);
      const sequence = new Sequence(model, prompt.length ? prompt : [tokenizer.eos], tokenizer.vocabSize, tokenizer.eos);
      const settings = {
        maxNewTokens: options.max_new_tokens ?? 256,
        temperature: options.temperature ?? 1,
        topK: options.top_k ?? null,
        topP: options.top_p ?? null,
        minP: options.min_p ?? null,
        repetitionPenalty: options.repetition_penalty ?? 1,
        seed: BigInt(options.seed ?? 0),
        sample: options.sample ?? 0,
      };
      const stream = new DecodeStream(tokenizer);
      const result: Generated = { text: "", tokens: [], finish_reason: null };
      for (const step of generate(sequence, settings, tokenizer.eos)) {
        if (step === null) continue;
        if (step.token !== null) {
          result.tokens.push(step.token);
          result.text += stream.push(step.token);
        }
        result.finish_reason = step.finishReason;
      }
      result.text += stream.finish(result.finish_reason === "length");
      return result;
    },
  };
}
