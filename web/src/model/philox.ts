/** Philox4x64-10, the counter-based generator of numpy: no state, the same bits as in Python.
 *
 * Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
 */
const MASK = (1n << 64n) - 1n;
const MULTIPLIERS = [0xd2e7470ee14c6c93n, 0xca5a826395121157n] as const;
const KEY_STEPS = [0x9e3779b97f4a7c15n, 0xbb67ae8584caa73bn] as const;
const ROUNDS = 10;

type Words = [bigint, bigint, bigint, bigint];

export function philox(counter: Words, key: [bigint, bigint]): Words {
  let [a, b, c, d] = counter;
  let [left, right] = key;
  for (let round = 0; round < ROUNDS; round++) {
    const first = MULTIPLIERS[0] * a;
    const second = MULTIPLIERS[1] * c;
    [a, b, c, d] = [(second >> 64n) ^ b ^ left, second & MASK, (first >> 64n) ^ d ^ right, first & MASK];
    left = (left + KEY_STEPS[0]) & MASK;
    right = (right + KEY_STEPS[1]) & MASK;
  }
  return [a, b, c, d];
}

/** A uniform random number in [0, 1) with 53 random bits: `normscope.generate.sampling.uniform`. */
export function uniform(seed: bigint, sample: number, position: number): number {
  // numpy increments the counter before the first block.
  const [bits] = philox([BigInt(position) + 1n, 0n, 0n, 0n], [seed, BigInt(sample)]);
  return Number(bits >> 11n) * 2 ** -53;
}
