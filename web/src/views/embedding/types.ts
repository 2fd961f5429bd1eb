/** What the endpoints of `studio/views/embedding.py` return. */

export interface Tokenizers {
  runs: string[];
  max_lines: number;
  max_tokens: number;
}

export interface TextBatch {
  /** The tokens of each line, as text. */
  tokens: string[][];
  /** Token ids (b, s), with padding, and where they are real. */
  ids: number[][];
  mask: boolean[][];
  pad: number;
  vocab_size: number;
  width: number;
  /** The rows of the table that are used, by id. Of each vector only the first features are sent. */
  rows: { id: number; token: string; vector: number[] }[];
  x: number[][][];
  shape: number[];
}

export interface ImagePatches {
  size: number;
  patch: number;
  patch_sizes: number[];
  /** Brightness from 0 to 1, in the order c h w. */
  pixels: number[];
  image_shape: number[];
  /** The values of each patch, and where each of them is in `pixels`. */
  patches: number[][];
  patches_shape: number[];
  places: number[][];
  embedded: number[][];
  embedded_shape: number[];
  layer: string;
}

/** A place in a batch: sequence, token, feature. */
export interface Place {
  b: number;
  s: number;
  d: number;
}
