/** Tokenizers of exported pages: characters, bytes, and byte-level BPE. They encode and decode as those in Python. */
import { BytePairEncoder } from "./bpe";
import type { Payload, TokenizerFile } from "./payload";

/** A text that the tokenizer cannot encode. */
export class TokenError extends Error {}

export interface Tokenizer {
  readonly vocabSize: number;
  readonly eos: number;
  /** The UTF-8 bytes of each token; none for a special token. */
  readonly tokenBytes: readonly Uint8Array[];
  /** Token ids of a text. The names of special tokens in it are ordinary text. */
  encode(text: string): number[];
}

export function makeTokenizer(payload: Pick<Payload, "tokenizer" | "vocab_size" | "eos_token_id">): Tokenizer {
  const { tokenBytes, encode } = parts(payload.tokenizer, payload.vocab_size);
  return {
    vocabSize: payload.vocab_size,
    eos: payload.eos_token_id,
    tokenBytes,
    encode: (text) => {
      if (/\p{Surrogate}/u.test(text)) throw new TokenError("the text has half of a surrogate pair");
      return encode(text);
    },
  };
}

function parts(file: TokenizerFile, vocabSize: number): { tokenBytes: Uint8Array[]; encode: (text: string) => number[] } {
  const utf8 = new TextEncoder();
  if (!("kind" in file)) {
    const encoder = new BytePairEncoder(file, vocabSize);
    return { tokenBytes: encoder.tokenBytes, encode: (text) => encoder.encode(text) };
  }
  if (file.kind === "bytes") {
    const tokenBytes = Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte));
    return { tokenBytes: [...tokenBytes, new Uint8Array()], encode: (text) => [...utf8.encode(text)] };
  }
  const alphabet = [...file.alphabet];
  const ids = new Map(alphabet.map((character, id) => [character, id]));
  const encode = (text: string) =>
    Array.from(text, (character) => {
      const id = ids.get(character);
      if (id === undefined) throw new TokenError(`${JSON.stringify(character)} is not among the ${alphabet.length} characters of this model`);
      return id;
    });
  return { tokenBytes: [...alphabet.map((character) => utf8.encode(character)), new Uint8Array()], encode };
}

/** Decodes tokens one by one: a character whose bytes span several tokens comes with the last of them. */
export class DecodeStream {
  private readonly decoder = new TextDecoder("utf-8", { ignoreBOM: true });

  constructor(private readonly tokenizer: Tokenizer) {}

  /** The text that is complete now, possibly empty. */
  push(token: number): string {
    return this.decoder.decode(this.tokenizer.tokenBytes[token], { stream: true });
  }

  /** The rest: U+FFFD for an incomplete character, or nothing if the text was cut off here. */
  finish(cut: boolean): string {
    const rest = this.decoder.decode();
    return cut ? "" : rest;
  }
}

/** How to show a token on its own: its text, or its bytes if they are no whole characters. */
export function tokenLabel(tokenizer: Tokenizer, token: number): string {
  const bytes = tokenizer.tokenBytes[token]!;
  if (token === tokenizer.eos || bytes.length === 0) return "<|end|>";
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");
  }
}
