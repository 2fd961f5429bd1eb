/** `window.normscope`: what a script can do with the model of the page, with the names of `normscope.generate_text`. */
import { generate, Sequence, type FinishReason } from "../model/generate";
import { DecodeStream } from "../model/tokenizer";
import type { Loaded } from "./load";
import { generationSettings, type Options } from "./settings";

interface Request extends Options {
  /** A text, or token ids. An empty prompt starts a new document. */
  prompt?: string | number[];
}

interface Generated {
  text: string;
  tokens: number[];
  finish_reason: FinishReason | null;
}

export function programmable({ model, tokenizer }: Loaded) {
  return {
    facts: () => ({ context: model.config.context, vocab_size: model.config.vocab_size, eos_token_id: tokenizer.eos }),
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
    /** The logits after each token of a text that fits the context, for comparisons; also those of padding. */
    positionLogits: (tokens: number[]): number[][] => {
      const sequence = new Sequence(model, tokens, model.config.vocab_size, tokenizer.eos);
      return tokens.map(() => {
        sequence.advance();
        return [...sequence.logits()];
      });
    },
    /** The likeliest next tokens, past any end of text. */
    greedy: (tokens: number[], count: number): number[] => {
      const sequence = new Sequence(model, tokens, model.config.vocab_size, tokenizer.eos);
      while (sequence.tokens.length < tokens.length + count) {
        while (sequence.pending > 0) sequence.advance();
        const logits = sequence.logits();
        sequence.append(logits.indexOf(Math.max(...logits)));
      }
      return sequence.tokens.slice(tokens.length);
    },
    generate: (request: Request = {}): Generated => {
      const prompt = typeof request.prompt === "string" ? tokenizer.encode(request.prompt) : (request.prompt ?? []);
      const sequence = new Sequence(model, prompt.length ? prompt : [tokenizer.eos], tokenizer.vocabSize, tokenizer.eos);
      const stream = new DecodeStream(tokenizer);
      const result: Generated = { text: "", tokens: [], finish_reason: null };
      for (const step of generate(sequence, generationSettings(request), tokenizer.eos)) {
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
