/** The forward pass of a `normscope.GPT`, one token at a time, with a KV cache.
 *
 * The cache also keeps the queries and the residual stream, from which the page shows attention and predictions.
 */
import { ACTIVATIONS, add, linear, normalize, rotate, rotaryTables } from "./operations";
import type { ModelConfig, NormTable, Payload, Tensors } from "./payload";

export interface LayerCache {
  keys: Float32Array; // (capacity, kvHeads * headDim)
  values: Float32Array;
  queries: Float32Array; // (capacity, heads * headDim)
}

export interface Cache {
  length: number;
  layers: LayerCache[];
  /** The residual stream (capacity, width): before the first block, and after each. */
  streams: Float32Array[];
}

type Branch = (x: Float32Array) => Float32Array;
type Wiring = (x: Float32Array, attention: Branch, mlp: Branch, norm: (index: number, x: Float32Array) => Float32Array) => Float32Array;

/** How attention and MLP are joined to the residual stream: `normscope.blocks.residual`. */
const WIRINGS: Record<string, Wiring> = {
  pre: (x, attention, mlp, norm) => {
    const middle = add(x, attention(norm(0, x)));
    return add(middle, mlp(norm(1, middle)));
  },
  post: (x, attention, mlp, norm) => {
    const middle = norm(0, add(x, attention(x)));
    return norm(1, add(middle, mlp(middle)));
  },
  sandwich: (x, attention, mlp, norm) => {
    const middle = add(x, norm(1, attention(norm(0, x))));
    return add(middle, norm(3, mlp(norm(2, middle))));
  },
  parallel: (x, attention, mlp, norm) => {
    const normed = norm(0, x);
    return add(add(x, attention(normed)), mlp(normed));
  },
  single: (x, attention, mlp, norm) => add(x, mlp(attention(norm(0, x)))),
  none: (x, attention, mlp, norm) => mlp(attention(norm(0, x))),
};

export class Gpt {
  readonly config: ModelConfig;
  readonly kvHeads: number;
  readonly headDim: number;
  private readonly tensors: Tensors;
  private readonly norm: NormTable | null;
  private readonly qkNorm: NormTable | null;
  private readonly rotary: { cos: Float32Array; sin: Float32Array } | null;
  private readonly activation: (x: number) => number;
  private readonly wiring: Wiring;

  constructor(payload: Pick<Payload, "config" | "norms">, tensors: Tensors) {
    const config = payload.config;
    this.config = config;
    this.tensors = tensors;
    this.kvHeads = config.kv_heads ?? config.heads;
    this.headDim = config.head_dim ?? config.width / config.heads;
    this.norm = payload.norms.norm;
    this.qkNorm = payload.norms.qk_norm;
    this.rotary = config.positions === "rotary" ? rotaryTables(config.context, this.headDim, config.rotary_base) : null;
    this.activation = ACTIVATIONS[config.activation]!;
    this.wiring = WIRINGS[config.wiring]!;
  }

  newCache(capacity: number): Cache {
    const { depth, width, heads } = this.config;
    const rows = (columns: number) => new Float32Array(capacity * columns);
    const layers = Array.from({ length: depth }, () => ({
      keys: rows(this.kvHeads * this.headDim),
      values: rows(this.kvHeads * this.headDim),
      queries: rows(heads * this.headDim),
    }));
    return { length: 0, layers, streams: Array.from({ length: depth + 1 }, () => rows(width)) };
  }

  /** Append a token to the cache. `readout` then gives the logits of the next one. */
  advance(token: number, cache: Cache): void {
    const { width, depth } = this.config;
    const position = cache.length;
    let x: Float32Array = this.tensor("embedding.weight").slice(token * width, (token + 1) * width);
    const table = this.tensors.get("position.weight");
    if (table !== undefined) x = add(x, table.subarray(position * width, (position + 1) * width));
    if (this.config.embedding_norm) x = this.normalized("embedding_norm", x, this.norm);
    cache.streams[0]!.set(x, position * width);
    for (let i = 0; i < depth; i++) {
      const name = `blocks.${i}`;
      const attention = (input: Float32Array) => this.attention(`${name}.attention`, input, cache.layers[i]!, position);
      const mlp = (input: Float32Array) => this.mlp(`${name}.mlp`, input);
      x = this.wiring(x, attention, mlp, (j, input) => this.normalized(`${name}.norms.${j}`, input, this.norm));
      cache.streams[i + 1]!.set(x, position * width);
    }
    cache.length++;
  }

  /** The logits that the residual stream predicts after `level` blocks at a position: at the last level, the model's. */
  readout(cache: Cache, position = cache.length - 1, level = this.config.depth): Float64Array {
    const { width, wiring, logit_cap: cap } = this.config;
    const stream = cache.streams[level]!.slice(position * width, (position + 1) * width);
    const ends = wiring === "post"; // whose blocks end with a norm, so that there is no final one
    const x = ends ? stream : this.normalized("final_norm", stream, this.norm);
    const head = this.tensors.get("head.weight") ?? this.tensor("embedding.weight");
    const logits = linear(x, head, undefined);
    if (cap !== null) {
      // Rounded after each operation: near the cap, torch gives many tokens exactly the same logit.
      for (let i = 0; i < logits.length; i++) logits[i] = cap * Math.fround(Math.tanh(Math.fround(logits[i]! / cap)));
    }
    return Float64Array.from(logits);
  }

  /** The attention weights of a query: for each position up to its own. */
  attentionWeights(layer: LayerCache, head: number, position: number): Float64Array {
    const { heads, window } = this.config;
    const size = this.headDim;
    const kvHead = Math.floor(head / (heads / this.kvHeads));
    const query = (position * heads + head) * size;
    const first = window === null ? 0 : Math.max(0, position - window + 1);
    const weights = new Float64Array(position + 1);
    let largest = -Infinity;
    for (let t = first; t <= position; t++) {
      const key = (t * this.kvHeads + kvHead) * size;
      let product = 0;
      for (let i = 0; i < size; i++) product += layer.queries[query + i]! * layer.keys[key + i]!;
      weights[t] = product / Math.sqrt(size);
      largest = Math.max(largest, weights[t]!);
    }
    let total = 0;
    for (let t = first; t <= position; t++) total += weights[t] = Math.exp(weights[t]! - largest);
    for (let t = first; t <= position; t++) weights[t]! /= total;
    return weights;
  }

  private attention(name: string, x: Float32Array, layer: LayerCache, position: number): Float32Array {
    const { heads } = this.config;
    const size = this.headDim;
    const q = this.normAndRotate(`${name}.q_norm`, this.linear(`${name}.q`, x), position);
    const k = this.normAndRotate(`${name}.k_norm`, this.linear(`${name}.k`, x), position);
    layer.queries.set(q, position * q.length);
    layer.keys.set(k, position * k.length);
    layer.values.set(this.linear(`${name}.v`, x), position * k.length);
    const y = new Float32Array(heads * size);
    const sums = new Float64Array(size);
    for (let head = 0; head < heads; head++) {
      const weights = this.attentionWeights(layer, head, position);
      const kvHead = Math.floor(head / (heads / this.kvHeads));
      sums.fill(0);
      for (let t = 0; t <= position; t++) {
        const weight = weights[t]!;
        if (weight === 0) continue;
        const value = (t * this.kvHeads + kvHead) * size;
        for (let i = 0; i < size; i++) sums[i]! += weight * layer.values[value + i]!;
      }
      y.set(sums, head * size);
    }
    return this.linear(`${name}.out`, y);
  }

  private normAndRotate(name: string, x: Float32Array, position: number): Float32Array {
    const normed = this.normalized(name, x, this.qkNorm);
    if (this.rotary !== null) rotate(normed, this.headDim, position, this.rotary.cos, this.rotary.sin);
    return normed;
  }

  private mlp(name: string, x: Float32Array): Float32Array {
    const hidden = this.linear(`${name}.up`, x);
    const gate = this.tensors.has(`${name}.gate.weight`) ? this.linear(`${name}.gate`, x) : null;
    for (let i = 0; i < hidden.length; i++) {
      hidden[i] = gate === null ? this.activation(hidden[i]!) : this.activation(gate[i]!) * hidden[i]!;
    }
    return this.linear(`${name}.down`, hidden);
  }

  private linear(name: string, x: Float32Array): Float32Array {
    return linear(x, this.tensor(`${name}.weight`), this.tensors.get(`${name}.bias`));
  }

  private normalized(name: string, x: Float32Array, norm: NormTable | null): Float32Array {
    if (norm === null) return x;
    return normalize(x, norm, { weight: this.tensors.get(`${name}.weight`), bias: this.tensors.get(`${name}.bias`) });
  }

  private tensor(name: string): Float32Array {
    const tensor = this.tensors.get(name);
    if (tensor === undefined) throw new Error(`the page has no tensor ${name}`);
    return tensor;
  }
}
