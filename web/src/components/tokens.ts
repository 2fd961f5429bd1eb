/** Tokens as the server sends them, and as the page of an exported model computes them. */

export interface Token {
  id: number;
  /** The token on its own, as in lists. */
  text: string;
}

export interface Likely extends Token {
  probability: number;
}

export interface Alternative extends Likely {
  /** The probability after the sampling settings; 0 if they exclude the token. */
  sampled: number;
}

/** A token of a text, with what the model predicted in its place, if it did. */
export interface TextToken extends Token {
  /** The text that is complete with this token, if it differs from its own: empty if a character goes on. */
  shown?: string;
  generated?: boolean;
  probability?: number;
  alternatives?: Alternative[];
}

/** A token with its spaces and line breaks visible. */
export function visible({ text }: { text: string }): string {
  return text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}
