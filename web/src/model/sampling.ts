/** Sample a token from logits: repetition penalty, temperature, top-k, top-p and min-p.
 *
 * The same computation as `normscope.generate.sampling`, in float64 and in the same order: by token id wherever
 * probabilities are summed or tie.
 */
export interface SamplingSettings {
  temperature: number;
  topK: number | null;
  topP: number | null;
  minP: number | null;
  repetitionPenalty: number;
}

/** A token id; `u` is a uniform random number in [0, 1), `seen` the distinct tokens that already occur. */
export function sampleToken(logits: Float64Array, settings: SamplingSettings, u: number, seen: Iterable<number>): number {
  const penalized = applyRepetitionPenalty(logits, seen, settings.repetitionPenalty);
  if (settings.temperature === 0) return indexOfMaximum(penalized);
  return sampleIndex(unnormalizedProbabilities(penalized, settings), u);
}

/** The probabilities with which `sampleToken` chooses each token; the most likely one gets 1 at temperature 0. */
export function samplingProbabilities(logits: Float64Array, settings: SamplingSettings, seen: Iterable<number>): Float64Array {
  const penalized = applyRepetitionPenalty(logits, seen, settings.repetitionPenalty);
  if (settings.temperature === 0) {
    const certain = new Float64Array(logits.length);
    certain[indexOfMaximum(penalized)] = 1;
    return certain;
  }
  return normalized(unnormalizedProbabilities(penalized, settings));
}

/** Probabilities after temperature, top-k, top-p and min-p, up to a factor: the most likely token has 1. */
export function unnormalizedProbabilities(logits: Float64Array, settings: SamplingSettings): Float64Array {
  const largest = maximum(logits);
  let weights: Float64Array = logits.map((logit) => Math.exp((logit - largest) / settings.temperature));
  const { topK, topP, minP } = settings;
  if (topK !== null && topK < weights.length) weights = keepOnly(weights, sortByProbability(weights).slice(0, topK));
  if (topP !== null) weights = keepOnly(weights, nucleus(weights, topP));
  if (minP !== null) weights = weights.map((weight) => (weight >= minP ? weight : 0));
  return weights;
}

/** The first index at which the cumulative weight exceeds the fraction u of the total. */
export function sampleIndex(weights: Float64Array, u: number): number {
  let total = 0;
  for (const weight of weights) total += weight;
  const wanted = u * total;
  let cumulative = 0;
  for (let i = 0; i < weights.length; i++) {
    cumulative += weights[i]!;
    if (cumulative > wanted) return i;
  }
  return weights.length; // as in Python; u < 1, so it does not happen
}

export function softmax(logits: Float64Array): Float64Array {
  const largest = maximum(logits);
  return normalized(logits.map((logit) => Math.exp(logit - largest)));
}

/** Token ids from most to least likely; ties by token id. */
export function sortByProbability(weights: Float64Array): number[] {
  const ids: number[] = [];
  for (let id = 0; id < weights.length; id++) if (weights[id]! > 0) ids.push(id);
  return ids.sort((a, b) => weights[b]! - weights[a]! || a - b);
}

/** The smallest set of most likely tokens with at least this share of the total probability. */
function nucleus(weights: Float64Array, topP: number): number[] {
  let total = 0;
  for (const weight of weights) total += weight;
  const needed = topP * total;
  const ranked = sortByProbability(weights);
  let cumulative = 0;
  for (let i = 0; i < ranked.length; i++) {
    cumulative += weights[ranked[i]!]!;
    if (cumulative >= needed) return ranked.slice(0, i + 1);
  }
  return ranked;
}

function keepOnly(weights: Float64Array, kept: number[]): Float64Array {
  const filtered = new Float64Array(weights.length);
  for (const id of kept) filtered[id] = weights[id]!;
  return filtered;
}

function applyRepetitionPenalty(logits: Float64Array, seen: Iterable<number>, penalty: number): Float64Array {
  const penalized = logits.slice();
  if (penalty !== 1) {
    for (const id of seen) penalized[id] = logits[id]! > 0 ? logits[id]! / penalty : logits[id]! * penalty;
  }
  if (!Number.isFinite(maximum(penalized))) throw new Error("the logits contain NaN or Inf, so no token can be sampled");
  return penalized;
}

/** The largest value; NaN if there is one. */
function maximum(values: Float64Array): number {
  let largest = -Infinity;
  for (const value of values) if (!(value <= largest)) largest = value;
  return largest;
}

function indexOfMaximum(values: Float64Array): number {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i]! > values[best]!) best = i;
  return best;
}

function normalized(weights: Float64Array): Float64Array {
  let total = 0;
  for (const weight of weights) total += weight;
  return weights.map((weight) => weight / total);
}
