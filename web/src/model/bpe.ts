/** Byte-level byte-pair encoding, as Hugging Face's tokenizers do it with GPT-2's splitting of words. */
import type { TokenizerFile } from "./payload";

type BpeFile = Exclude<TokenizerFile, { kind: string }>;

/** GPT-2's words. Rust's \s is the property White_Space, which JavaScript's \s is not. */
const WORDS =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

/** The character that stands for each byte in a vocabulary: itself if it is printable, otherwise one from U+0100 on. */
const BYTE_CHARACTERS = (() => {
  const isPrintable = (byte: number) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : next++));
})();
const BYTE_OF = new Map(BYTE_CHARACTERS.map((character, byte) => [character, byte]));

export class BytePairEncoder {
  readonly tokenBytes: Uint8Array[];
  private readonly bytes: number[];
  /** For a pair of tokens: its rank among the merges, and the token that replaces it. */
  private readonly merges = new Map<string, { rank: number; token: number }>();
  private readonly words = new Map<string, number[]>();
  private readonly utf8 = new TextEncoder();

  constructor(file: BpeFile, vocabSize: number) {
    const { vocab, merges } = file.model;
    const ids = new Map(Object.entries(vocab)); // a token may be named "constructor"
    this.bytes = BYTE_CHARACTERS.map((character) => ids.get(character)!);
    merges.forEach((merge, rank) => {
      const [left, right] = typeof merge === "string" ? (merge.split(" ") as [string, string]) : merge;
      this.merges.set(`${ids.get(left)},${ids.get(right)}`, { rank, token: ids.get(left + right)! });
    });
    const special = new Set(file.added_tokens.map((token) => token.id));
    this.tokenBytes = Array.from({ length: vocabSize }, () => new Uint8Array());
    for (const [name, id] of ids) if (!special.has(id)) this.tokenBytes[id] = bytesOf(name, this.utf8);
  }

  encode(text: string): number[] {
    const tokens: number[] = [];
    for (const [word] of text.matchAll(WORDS)) {
      let found = this.words.get(word);
      if (found === undefined) this.words.set(word, (found = this.encodeWord(word)));
      for (const token of found) tokens.push(token);
    }
    return tokens;
  }

  /** Merge the pair with the lowest rank, the leftmost if there are several, until no pair is left to merge. */
  private encodeWord(word: string): number[] {
    const tokens = Array.from(this.utf8.encode(word), (byte) => this.bytes[byte]!);
    for (;;) {
      let best: { rank: number; token: number } | undefined;
      let at = 0;
      for (let i = 0; i + 1 < tokens.length; i++) {
        const merge = this.merges.get(`${tokens[i]},${tokens[i + 1]}`);
        if (merge !== undefined && (best === undefined || merge.rank < best.rank)) [best, at] = [merge, i];
      }
      if (best === undefined) return tokens;
      tokens.splice(at, 2, best.token);
    }
  }
}

/** The bytes of a token; an added token with characters outside the alphabet is plain UTF-8. */
function bytesOf(name: string, utf8: TextEncoder): Uint8Array {
  const bytes = Array.from(name, (character) => BYTE_OF.get(character));
  return bytes.includes(undefined) ? utf8.encode(name) : Uint8Array.from(bytes as number[]);
}
