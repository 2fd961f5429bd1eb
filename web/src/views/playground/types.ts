/** The answers of normscope.studio.views.playground. */
export interface Token {
  id: number;
  text: string;
  /** A token without text of its own, such as the end of a document. */
  special: boolean;
}

export interface Likely extends Token {
  probability: number;
}

export interface Alternative extends Likely {
  /** The probability after the sampling settings; 0 if they exclude the token. */
  sampled: number;
}

export interface GeneratedToken extends Alternative {
  alternatives: Alternative[];
  /** Index of the first token that the model saw. */
  start: number;
}

export type GenerateItem = { prompt: Token[] } | GeneratedToken | { finish_reason: "stop_token" | "length" | "stop"; notices: string[] };

export interface LensRow {
  blocks: number;
  top: Likely[];
  chosen?: number;
  rank?: number;
}

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

export interface Sampling {
  max_new_tokens: number;
  temperature: number;
  top_k: number | null;
  top_p: number | null;
  min_p: number | null;
  repetition_penalty: number;
  seed: number;
}

/** A token as it is listed: spaces and line breaks can be seen. */
export function visible(token: Token): string {
  return token.text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
}
