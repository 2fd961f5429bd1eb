/** The page's random numbers, sampling, tokenizers and erf give what Python gives (golden.json: tests/exporting/golden.py). */
import { describe, expect, it } from "vitest";
import golden from "./golden.json";
import { generate, Sequence } from "./generate";
import type { Gpt } from "./gpt";
import { erf } from "./operations";
import type { Payload } from "./payload";
import { uniform } from "./philox";
import { sampleToken, samplingProbabilities } from "./sampling";
import { DecodeStream, makeTokenizer, TokenError, tokenLabel } from "./tokenizer";

it.each(golden.uniform)("uniform(%s, %d, %d)", (seed, sample, position, value) => {
  expect(uniform(BigInt(seed as string), sample as number, position as number)).toBe(value);
});

describe("sampling", () => {
  it.each(golden.sampling)("with $settings", ({ logits, settings, seen, draws, tokens }) => {
    const values = Float64Array.from(logits);
    expect(draws.map((u) => sampleToken(values, settings, u, seen))).toEqual(tokens);
    const probabilities = samplingProbabilities(values, settings, seen);
    expect(probabilities.reduce((sum, p) => sum + p, 0)).toBeCloseTo(1, 12);
    for (const token of tokens) expect(probabilities[token]).toBeGreaterThan(0);
  });

  it("refuses NaN", () => {
    const settings = { temperature: 1, topK: null, topP: null, minP: null, repetitionPenalty: 1 };
    expect(() => sampleToken(Float64Array.of(1, NaN), settings, 0.5, [])).toThrow("NaN");
  });
});

describe.each(golden.tokenizers.map((one) => one as unknown as Payload & typeof one))("tokenizer $vocab_size", (one) => {
  const tokenizer = makeTokenizer(one);

  it("encodes and decodes", () => {
    for (const [text, tokens] of one.encoded as [string, number[]][]) {
      expect(tokenizer.encode(text)).toEqual(tokens);
      const stream = new DecodeStream(tokenizer);
      expect(tokens.map((token) => stream.push(token)).join("") + stream.finish(false)).toBe(text);
    }
  });

  it("decodes incomplete and invalid characters", () => {
    for (const [tokens, text] of one.decoded as [number[], string][]) {
      const stream = new DecodeStream(tokenizer);
      expect(tokens.map((token) => stream.push(token)).join("") + stream.finish(false)).toBe(text);
    }
  });

  it("refuses half of a surrogate pair", () => {
    expect(() => tokenizer.encode("a\ud83d")).toThrow(TokenError);
  });
});

it("labels tokens that are no whole characters by their bytes", () => {
  const tokenizer = makeTokenizer({ tokenizer: { kind: "bytes" }, vocab_size: 257, eos_token_id: 256 });
  expect([65, 0xc3, 256].map((token) => tokenLabel(tokenizer, token))).toEqual(["A", "\\xc3", "<|end|>"]);
});

it.each(golden.erf)("erf(%d)", (x, value) => {
  expect(erf(x!)).toBeCloseTo(value!, 14);
});

it("gives the tokens before each step: the repetition penalty does not apply to a token that comes for the first time", () => {
  const model = { config: { context: 8 }, newCache: () => ({ length: 0 }), advance: (_: number, cache: { length: number }) => cache.length++, readout: () => Float64Array.of(0, 1, 3, -9) };
  const sequence = new Sequence(model as unknown as Gpt, [1, 3, 0], 4, 3);
  const settings = { temperature: 0, topK: null, topP: null, minP: null, repetitionPenalty: 1.5, maxNewTokens: 2, seed: 0n, sample: 0 };
  const steps = [...generate(sequence, settings, 3)].filter((step) => step !== null);
  expect(steps.map(({ token, seen }) => [token, [...seen]])).toEqual([[2, [1, 0]], [2, [1, 0, 2]]]);
  expect([...sequence.distinct(2)]).toEqual([1]);
});
