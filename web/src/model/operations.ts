/** The arithmetic of the forward pass. Sums are in float64; results are stored as float32, as torch stores them. */
import type { NormTable } from "./payload";

export interface Affine {
  weight: Float32Array | undefined;
  bias: Float32Array | undefined;
}

/** y = W x + b, for W of shape (y, x). */
export function linear(x: Float32Array, weight: Float32Array, bias: Float32Array | undefined): Float32Array {
  const columns = x.length;
  const rows = weight.length / columns;
  const y = new Float32Array(rows);
  const whole = columns - (columns % 4);
  for (let row = 0, start = 0; row < rows; row++, start += columns) {
    // Four sums, so that an addition does not wait for the one before.
    let a = 0;
    let b = 0;
    let c = 0;
    let d = 0;
    for (let i = 0; i < whole; i += 4) {
      a += weight[start + i]! * x[i]!;
      b += weight[start + i + 1]! * x[i + 1]!;
      c += weight[start + i + 2]! * x[i + 2]!;
      d += weight[start + i + 3]! * x[i + 3]!;
    }
    for (let i = whole; i < columns; i++) a += weight[start + i]! * x[i]!;
    y[row] = a + b + (c + d) + (bias === undefined ? 0 : bias[row]!);
  }
  return y;
}

export function add(x: Float32Array, y: Float32Array): Float32Array {
  const sum = new Float32Array(x.length);
  for (let i = 0; i < x.length; i++) sum[i] = x[i]! + y[i]!;
  return sum;
}

/** Normalize each group of neighboring values; a shorter gain or bias repeats, as one per head does. */
export function normalize(x: Float32Array, norm: NormTable, { weight, bias }: Affine): Float32Array {
  const y = new Float32Array(x.length);
  const { group } = norm;
  for (let start = 0; start < x.length; start += group) {
    let mean = 0;
    if (norm.centers) {
      for (let i = start; i < start + group; i++) mean += x[i]!;
      mean /= group;
    }
    let moment = 0;
    for (let i = start; i < start + group; i++) moment += (x[i]! - mean) ** 2;
    const factor = 1 / Math.sqrt(moment / group + norm.eps);
    for (let i = start; i < start + group; i++) {
      let value = (x[i]! - mean) * factor;
      if (weight !== undefined) value *= weight[i % weight.length]!;
      if (bias !== undefined) value += bias[i % bias.length]!;
      y[i] = value;
    }
  }
  return y;
}

/** cos and sin of each position and pair of features, (context, headDim / 2). */
export function rotaryTables(context: number, headDim: number, base: number): { cos: Float32Array; sin: Float32Array } {
  const half = headDim / 2;
  const cos = new Float32Array(context * half);
  const sin = new Float32Array(context * half);
  for (let position = 0; position < context; position++) {
    for (let i = 0; i < half; i++) {
      const angle = position * base ** (-i / half);
      cos[position * half + i] = Math.cos(angle);
      sin[position * half + i] = Math.sin(angle);
    }
  }
  return { cos, sin };
}

/** Rotate the first half of each head against its second half, in place. */
export function rotate(x: Float32Array, headDim: number, position: number, cos: Float32Array, sin: Float32Array): void {
  const half = headDim / 2;
  for (let head = 0; head < x.length; head += headDim) {
    for (let i = 0; i < half; i++) {
      const c = cos[position * half + i]!;
      const s = sin[position * half + i]!;
      const a = x[head + i]!;
      const b = x[head + half + i]!;
      x[head + i] = a * c - b * s;
      x[head + half + i] = a * s + b * c;
    }
  }
}

const silu = (x: number) => x / (1 + Math.exp(-x));
const relu = (x: number) => (x < 0 ? 0 : x);
const gelu = (x: number) => 0.5 * x * (1 + erf(x * Math.SQRT1_2));
const geluTanh = (x: number) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

/** The activations by name; for a gated one, that of its gate. */
export const ACTIVATIONS: Record<string, (x: number) => number> = {
  relu2: (x) => relu(x) ** 2,
  relu,
  gelu,
  "gelu-tanh": geluTanh,
  silu,
  swiglu: silu,
  reglu: relu,
  geglu: gelu,
};

const NODES_PER_UNIT = 32;
const LAST_NODE = 6 * NODES_PER_UNIT; // beyond 6, erf is 1 in float64
const ERF_NODES = Float64Array.from({ length: LAST_NODE + 1 }, (_, i) => erfSeries(i / NODES_PER_UNIT));

/** The error function, to about 1e-15: a Taylor polynomial around the nearest node of a table. */
export function erf(x: number): number {
  const size = Math.abs(x);
  if (!(size < LAST_NODE / NODES_PER_UNIT)) return Number.isNaN(x) ? NaN : Math.sign(x);
  const node = Math.round(size * NODES_PER_UNIT);
  const a = node / NODES_PER_UNIT;
  const h = size - a;
  // The derivatives of erf are those of a Gaussian: Hermite polynomials times 2 / sqrt(pi) exp(-a^2).
  let term = ((2 / Math.sqrt(Math.PI)) * Math.exp(-a * a) * h) as number;
  let previous = 0;
  let hermite = 1;
  let sum = 0;
  for (let n = 0; n < 8; n++) {
    sum += hermite * term;
    [previous, hermite] = [hermite, 2 * a * hermite - 2 * n * previous];
    term *= -h / (n + 2);
  }
  return Math.sign(x) * (ERF_NODES[node]! + sum);
}

/** erf by its series, all of whose terms are positive. */
function erfSeries(x: number): number {
  let term = x;
  let sum = x;
  for (let n = 1; term > 1e-18 * sum; n++) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}
