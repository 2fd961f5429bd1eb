/** The settings of a text, with the names of `normscope.generate_text`, as the model of the page takes them. */
import type { Sampling } from "../components/sampling";
import type { GenerationSettings } from "../model/generate";

/** The settings that the page begins with. */
export const DEFAULTS: Sampling = { temperature: 0.8, top_k: null, top_p: null, min_p: null, repetition_penalty: 1, max_new_tokens: 100, seed: 0 };

export interface Options extends Partial<Omit<Sampling, "seed">> {
  /** A string where a number is too coarse. */
  seed?: number | string;
  sample?: number;
}

export function generationSettings(options: Options): GenerationSettings {
  return {
    maxNewTokens: options.max_new_tokens ?? 256,
    temperature: options.temperature ?? 1,
    topK: options.top_k ?? null,
    topP: options.top_p ?? null,
    minP: options.min_p ?? null,
    repetitionPenalty: options.repetition_penalty ?? 1,
    seed: BigInt(options.seed ?? 0),
    sample: options.sample ?? 0,
  };
}
