/** The model of an exported page, as Python wrote it: JSON, and the weights as base64. See normscope/exporting/html.py. */

/** A norm: `group` neighboring values share a mean and a variance (or a mean square). */
export interface NormTable {
  centers: boolean;
  eps: number;
  group: number;
}

/** The fields of `normscope.GPTConfig` that the forward pass needs. */
export interface ModelConfig {
  vocab_size: number;
  context: number;
  width: number;
  depth: number;
  heads: number;
  kv_heads: number | null;
  head_dim: number | null;
  activation: string;
  wiring: string;
  window: number | null;
  positions: "learned" | "rotary" | "none";
  rotary_base: number;
  embedding_norm: boolean;
  logit_cap: number | null;
}

export interface TensorEntry {
  name: string;
  shape: number[];
  dtype: "int8" | "float32";
  offset: number;
}

export interface Facts {
  name: string;
  parameters: number;
  step: number;
  steps: number;
  loss: number | null;
  bits_per_byte: number | null;
  floor: number | null;
}

/** The contents of a tokenizer.json: normscope's own, or a byte-level BPE of Hugging Face's tokenizers. */
export type TokenizerFile =
  | { kind: "bytes" }
  | { kind: "characters"; alphabet: string }
  | {
      added_tokens: { id: number; content: string; special: boolean }[];
      pre_tokenizer: { add_prefix_space: boolean; use_regex: boolean };
      model: { vocab: Record<string, number>; merges: ([string, string] | string)[] };
    };

export interface Payload {
  format: number;
  normscope: string;
  facts: Facts;
  prompt: string;
  config: ModelConfig;
  norms: { norm: NormTable | null; qk_norm: NormTable | null };
  tokenizer: TokenizerFile;
  vocab_size: number;
  eos_token_id: number;
  weights: "int8" | "float32";
  tensors: TensorEntry[];
}

export type Tensors = Map<string, Float32Array>;

export function decodeBase64(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** All tensors in float32; an int8 value is multiplied by the scale of its row, rounded to float32 as in Python. */
export function unpackTensors(entries: TensorEntry[], bytes: Uint8Array): Tensors {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const floats = (offset: number, count: number) =>
    Float32Array.from({ length: count }, (_, i) => view.getFloat32(offset + 4 * i, true));
  const tensors: Tensors = new Map();
  for (const { name, shape, dtype, offset } of entries) {
    const count = shape.reduce((product, size) => product * size, 1);
    if (dtype === "float32") {
      tensors.set(name, floats(offset, count));
      continue;
    }
    const rows = shape[0]!;
    const columns = count / rows;
    const scale = floats(offset + count + ((4 - (count % 4)) % 4), rows);
    const values = new Float32Array(count); // which rounds what is stored
    for (let row = 0, i = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++, i++) values[i] = view.getInt8(offset + i) * scale[row]!;
    }
    tensors.set(name, values);
  }
  return tensors;
}
