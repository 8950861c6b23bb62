// @ts-check
// The inputs that bench/works/inputs.h makes, number for number.

export const geometry = { heads: 12, kvHeads: 2, qkHeadDim: 48, vHeadDim: 64 };
export const kDim = geometry.kvHeads * geometry.qkHeadDim;
export const vDim = geometry.kvHeads * geometry.vHeadDim;
export const qDim = geometry.heads * geometry.qkHeadDim;
export const attnOutDim = geometry.heads * geometry.vHeadDim;

/** @param {number} seed @returns {(count: number) => Float32Array} */
export function randomFloats(seed) {
  let state = (Math.imul(seed, 0x9e3779b9) + 1) >>> 0;
  const deviation = Math.fround(1.7320508);
  const next = () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return ((state >>> 8) / (1 << 23) - 1) * deviation;
  };
  return (count) => Float32Array.from({ length: count }, next);
}

/** @param {number} count @param {number} dim @param {(count: number) => Float32Array} random */
export function averagingTaps(count, dim, random) {
  const taps = new Float32Array(count * dim);
  for (let c = 0; c < dim; ++c) {
    const newest = Math.fround(0.5 + Math.fround(Math.fround(0.1) * random(1)[0]));
    for (let j = 0; j < count; ++j) taps[j * dim + c] = j === 0 ? newest : Math.fround(1 - newest) / (count - 1);
  }
  return taps;
}

/** Keys (positions, kvHeads, qkHeadDim), values (positions, kvHeads, vHeadDim) and one query, as `attend` has them. */
export function attendInputs(/** @type {number} */ positions) {
  const keys = new Float32Array(positions * kDim);
  const values = new Float32Array(positions * vDim);
  const random = randomFloats(1);
  for (let p = 0; p < positions; ++p) {
    keys.set(random(kDim), p * kDim);
    values.set(random(vDim), p * vDim);
  }
  return { keys, values, query: randomFloats(2)(qDim) };
}
