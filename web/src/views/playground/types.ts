/** The answers of normscope.studio.views.playground. */
import type { Sampling } from "../../components/sampling";
import type { TextToken, Token } from "../../components/tokens";

/** A token of the text; a generated one knows the index of the first token that the model saw. */
export interface PlaygroundToken extends TextToken {
  start?: number;
}

export type GenerateItem = { prompt: Token[] } | PlaygroundToken | { finish_reason: "stop_token" | "length" | "stop"; notices: string[] };

export interface Model {
  name: string;
  steps: number[];
  best: number | null;
  depth: number;
  heads: number;
  context: number;
  prompt: string;
}

export interface Models {
  models: Model[];
  limits: { max_new_tokens: number; prompt: number; map: number };
  defaults: Sampling;
}
